"""Provide ``--lr-scheduler t2t_noam``: the schedule of Vaswani et al. 2017 as in Tensor2Tensor."""

from dataclasses import dataclass
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError


@dataclass
class T2TNoamConfig(FairseqDataclass):
    noam_dim: Optional[int] = described("D: the width of the model, as in --decoder-embed-dim")
    warmup_updates: int = described("w: updates until the learning rate falls", 16000)
    lr: List[float] = II("optimization.lr")  # noqa: RUF009  (no call at fault: II returns a string)


def noam_factor(update: int, dim: int, warmup: int) -> float:
    """Return D^−½ min(t^−½, t w^−3/2) for update t = 1, 2, …: rises until t = w, then falls."""
    return dim**-0.5 * min(update**-0.5, update * warmup**-1.5)


@register_lr_scheduler("t2t_noam", dataclass=T2TNoamConfig)
class T2TNoamSchedule(FairseqLRScheduler):
    """Set the learning rate of update t = 1, 2, … to ``--lr`` · `noam_factor`\\ (t, D, w).

    With ``--lr`` c it is fairseq's ``inverse_sqrt`` with ``--lr`` c (D w)^−½ and the same
    ``--warmup-updates``, one update earlier: there the first update has learning rate 0.

    Only the number of updates matters, so a resumed training run continues exactly.
    """

    def __init__(self, cfg: T2TNoamConfig, optimizer: FairseqOptimizer):
        super().__init__(cfg, optimizer)
        for name in ("noam_dim", "warmup_updates"):
            value = getattr(cfg, name)
            if value is None or value < 1:
                raise UserError(
                    f"--lr-scheduler t2t_noam needs {flag(name)} of at least 1, got {value}"
                )
        if len(cfg.lr) != 1:
            raise UserError(f"--lr-scheduler t2t_noam takes one --lr, got {list(cfg.lr)}")
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        factor = noam_factor(num_updates + 1, self.cfg.noam_dim, self.cfg.warmup_updates)
        self.optimizer.set_lr(self.cfg.lr[0] * factor)
        return self.optimizer.get_lr()
