"""Provide ``--optimizer nt_asgd``: SGD, then averaged SGD (Merity et al. 2018)."""

from dataclasses import dataclass
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.optim.averaged_sgd import AveragedSGD


@dataclass
class NTASGDConfig(FairseqDataclass):
    weight_decay: float = described("weight decay (L2, every weight)", 0.0)
    nonmono: int = described(
        "n: average once the validation loss of an epoch is worse than the best of "
        "all epochs before the last n",
        5,
    )
    asgd_at_epoch: Optional[int] = described(
        "average from the end of this epoch on, whatever the losses (0: from the first update)"
    )
    nonmono_stop: bool = described(
        "stop training when --nonmono would begin to average; for finetuning with "
        "--asgd-at-epoch 0, where validation uses the averages",
        False,
    )
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")
    lr: List[float] = II("optimization.lr")  # noqa: RUF009  (no call at fault: II returns a string)


@register_optimizer("nt_asgd", dataclass=NTASGDConfig)
class NTASGD(FairseqOptimizer):
    """Wrap `AveragedSGD` for fairseq; validation and checkpoints use the averages, if any."""

    def __init__(self, cfg: NTASGDConfig, params):
        super().__init__(cfg)
        if cfg.fp16 or cfg.bf16:
            raise UserError(
                "--optimizer nt_asgd needs float32 weights: use --amp instead of --fp16 or bf16"
            )
        if cfg.nonmono_stop and cfg.asgd_at_epoch is None:
            raise UserError(
                "--nonmono-stop needs --asgd-at-epoch: otherwise --nonmono would end "
                "training where averaging begins"
            )
        own = {"nonmono": cfg.nonmono, "at_epoch": cfg.asgd_at_epoch, "stop": cfg.nonmono_stop}
        self._optimizer = AveragedSGD(params, **own, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Return the options that a resumed training run takes from the command line."""
        return {"lr": self.cfg.lr[0], "weight_decay": self.cfg.weight_decay}
