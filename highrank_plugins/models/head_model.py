"""Define the part that all our fairseq models share: a head instead of the output projection."""

from argparse import Namespace
from collections.abc import Sequence

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from highrank_plugins import losses
from highrank_plugins.common.heartbeat import TrainingListener
from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.models import warm_start
from highrank_plugins.models.head_from_options import (
    function_options,
    head_from_options,
    require_same_function,
)
from highrank_plugins.models.head_monitor import HeadMonitor


class HeadModel(TrainingListener):
    """Put a head, as ``decoder.output_projection``, into the fairseq model whose class follows."""

    computes_loss = True
    as_returned = False  # hooks/generation.py sets it where output needs no second softmax
    monitor: HeadMonitor | None = None
    loss_checked_on: torch.device | None = None
    new_parameters: Sequence[str] = ()  # without values in the checkpoint that was loaded

    def attach_head(
        self, cfg: Namespace, dictionary: Dictionary, locked_dropout: bool = False
    ) -> None:
        """Replace the output projection by the head that ``cfg`` describes."""
        for name in ("quant_noise_scalar", "encoder_layers_to_keep", "decoder_layers_to_keep"):
            if getattr(cfg, name, None):
                raise UserError(
                    f"{flag(name)} does not work with a head; leave it out, or use a stock --arch"
                )
        projection = self.decoder.output_projection
        feature_dim, tied = self.decoder.output_embed_dim, self.decoder.share_input_output_embed
        self.decoder.output_projection = head_from_options(
            cfg, projection.weight, feature_dim, dictionary, tied, locked_dropout
        )
        self.head.states_function = False  # checkpoints hold `function_options`
        self.function_options()  # raises here rather than at the first checkpoint
        if cfg.head_z_loss and not self.head.has_log_norms:
            raise UserError(f"--head-z-loss: --head {cfg.head} has no z-loss; leave it out")
        memory = cfg.head_loss_memory
        self.loss_options = {
            "impl": cfg.head_loss, "memory": None if memory is None else memory * 2**20,
            "filter_gradients": cfg.head_loss_filter, "z_loss": cfg.head_z_loss,
        }  # fmt: skip
        if cfg.head_monitor:
            self.monitor = HeadMonitor(self.head, cfg.head_monitor)

    @classmethod
    def add_args(cls, parser):  # without defaults, which the architecture supplies
        BaseFairseqModel.add_args.__func__(cls, parser)  # not that of the stock model

    @property
    def head(self) -> Head:
        return self.decoder.output_projection

    def forward(self, *args, target: Tensor | None = None, **kwargs):
        """Run the stock forward pass; with a target [B, T] return ``Head.nll`` of the features.

        DDP and FSDP synchronise only what runs here. The loss is a sum unless told otherwise.
        """
        names = losses.LossOptions.__annotations__.keys() - self.loss_options.keys()
        names &= kwargs.keys()
        options = {"reduction": "sum"} | {name: kwargs.pop(name) for name in names}
        if target is None:
            self.check_criterion()
            return super().forward(*args, **kwargs)
        features, _ = self.features(*args, **kwargs)
        return self.head_loss(features, target, **options)

    def check_criterion(self) -> None:
        """Refuse an option of the loss where the criterion computes another one."""
        if self.training and self.loss_options["z_loss"]:
            raise UserError(
                "--head-z-loss has no effect with this criterion; take --criterion "
                "highrank_cross_entropy or bptt_cross_entropy"
            )

    def head_loss(self, features: Tensor, target: Tensor, **options) -> losses.LossOutput:
        """Return ``Head.nll`` by the requested implementation; the monitor sees the batch.

        A model that is scored on another device uses an implementation that works there. Only
        training adds the z-loss, so that validation losses compare.
        """
        if self.monitor is not None:
            labels = target if isinstance(target, Tensor) else target.labels
            self.monitor.see(features, labels, options.get("ignore_index"))
        how, device = self.loss_options, features.device
        impl = how["impl"]
        if not self.training:
            how = how | {"impl": losses.implementation_here(impl, device), "z_loss": 0.0}
        elif self.loss_checked_on != device:
            try:
                losses.check_implementation(impl, self.head, device, how["filter_gradients"])
            except ValueError as error:
                message = str(error).removeprefix("impl: ")
                raise UserError(f"--head-loss {impl}: {message}") from error
            self.loss_checked_on = device
        return self.head.nll(features, target, **(options | how))

    def features(self, *args, **kwargs):
        """Return the head's input [B, T, F], and the decoder's other output (attention)."""
        return super().forward(*args, features_only=True, **kwargs)

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Return log P or P, without a second normalisation where the first is exact."""
        if log_probs and self.as_returned:
            return net_output[0].float()
        return super().get_normalized_probs(net_output, log_probs, sample)

    def target_scores(self, target: Tensor) -> "TargetScores":
        return TargetScores(self, target)

    def function_options(self) -> dict:
        return function_options(self.head)

    def check_saved_options(self, options: dict) -> None:
        require_same_function(options, self.head)

    def upgrade_state_dict_named(self, state_dict: dict, name: str) -> None:
        """Upgrade old checkpoints as fairseq does, and fill in a new head and new positions."""
        super().upgrade_state_dict_named(state_dict, name)
        output = warm_start.OUTPUT
        if any(key.startswith(f"{output}parametrizations.weight.") for key in state_dict):
            state_dict.pop(f"{output}weight", None)  # fairseq's copy of a tied embedding
        if self.decoder.share_input_output_embed:
            warm_start.require_one_matrix(state_dict)
        self.new_parameters = [
            *warm_start.fill_new_parameters(state_dict, self.head, output),
            *warm_start.fill_new_tables(state_dict, self),
        ]

    def check_loaded(self) -> None:
        if self.new_parameters:
            raise UserError(
                f"the checkpoint holds no values of {', '.join(self.new_parameters)}: it has "
                "another output layer or other positions. It can only initialise a new "
                "training run (--finetune-from-model)"
            )

    def prepare_for_inference_(self, cfg) -> None:
        self.check_loaded()
        if getattr(cfg.generation, "retain_dropout", False):
            raise UserError("--retain-dropout does not act on a head; leave it out")
        super().prepare_for_inference_(cfg)


class TargetScores:
    """Replace a model in fairseq's ``SequenceScorer``, which gathers from log-probs [B, T, V].

    The head computes those of ``target`` alone, by chunks of tokens; what the scorer gathers
    from is a view that repeats them V times and takes no memory.
    """

    def __init__(self, model, target: Tensor) -> None:
        self.model, self.target = model, target

    def eval(self) -> None:
        self.model.eval()

    def __call__(self, carried=None, **net_input):
        """Return log P(target) [B, T, 1], and what the decoder returns besides features.

        If batches continue each other, ``carried.states`` has the state of each model.
        """
        if carried is not None:
            net_input["state"] = carried.states.get(self.model)
        features, extra = self.model.features(**net_input)
        if carried is not None:
            carried.states[self.model] = extra["state"]
        self.features = features
        nll = self.model.head_loss(features, self.target).nll
        return -nll.unsqueeze(-1), extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Return the scores [..., 1], or their exponentials, as a view [..., V]."""
        scores = net_output[0] if log_probs else net_output[0].exp()
        return scores.expand(*scores.shape[:-1], self.model.head.num_classes)

    def distributions(self, tokens: list[int]) -> Tensor:
        """Return log P of all words [n, V] of some tokens, by number in the scored batch."""
        return self.model.head.log_probs(self.features.flatten(0, 1)[tokens])
