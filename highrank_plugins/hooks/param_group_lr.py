"""All parameters have one learning rate.

What breaks: a model cannot give some of its parameters another learning rate: optimizers get a bare
list, and `set_lr` writes one number into every group at every update. `--optimizer composite` knows
groups, but never tells its schedulers the validation loss.
Why: that is how `FairseqOptimizer` is written.
What we do: a parameter may carry its own rate (`set_own_rate`). Such parameters become a group of
any optimizer. The ratio of their rate to the others' stays the same, whatever the scheduler does:
at `--lr 20`, a rate of 0.02 is always 1/1000 of the others' rate.
Delete when: fairseq's optimizers take groups.
"""

from collections.abc import Iterable
from math import isfinite

from fairseq import optim
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from torch import nn

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

# the only attribute that fairseq copies to the float32 copies of parameters
_ATTRIBUTE = "optim_overrides"


def set_own_rate(parameter: nn.Parameter, lr: float) -> None:
    """Train `parameter` with learning rate `lr` while the others have the first value of --lr."""
    setattr(parameter, _ATTRIBUTE, {"optimizer": {"lr": lr}})


def own_rate(parameter: nn.Parameter) -> float | None:
    """Return the rate that `set_own_rate` set."""
    overrides = getattr(parameter, _ATTRIBUTE, {})
    return overrides.get("optimizer", {}).get("lr")


@replaces(optim, "build_optimizer")
def build_optimizer(stock, cfg, params, *args, **kwargs):
    """Build the optimizer of a configuration, with a group for each parameter's own rate."""
    built = stock(cfg, params, *args, **kwargs)
    rates = {own_rate(p) for p in built.params} - {None}
    if rates:
        _split(built, sorted(rates))
    return built


def _split(built: FairseqOptimizer, rates: Iterable[float]) -> None:
    if len(built.param_groups) != 1:
        return  # an optimizer with groups of its own: `require_found` refuses it
    base = built.get_lr()
    if base is None or not (isfinite(base) and base > 0):
        raise UserError(f"a parameter with its own learning rate needs --lr above 0, got {base}")
    (first,) = built.param_groups
    everything = first["params"]
    first["params"] = [p for p in everything if own_rate(p) is None]
    settings = {name: value for name, value in first.items() if name != "params"}
    for rate in rates:
        own = [p for p in everything if own_rate(p) == rate]
        built.optimizer.add_param_group(settings | {"params": own, "lr": rate})
    # not stored in the groups, because a resumed training run takes those from the checkpoint
    built.ratios_to_lr = [1.0, *(rate / base for rate in rates)]


@replaces(FairseqOptimizer, "set_lr")
def set_lr(stock, built, lr):
    """Set the learning rate; groups with their own keep the ratio."""
    ratios = getattr(built, "ratios_to_lr", [1.0] * len(built.param_groups))
    for group, ratio in zip(built.param_groups, ratios, strict=True):
        group["lr"] = lr * ratio


@replaces(Trainer, "_build_optimizer")
def _build_optimizer(stock, trainer):
    """Build the optimizer, which must have found every parameter with its own rate."""
    stock(trainer)
    require_found(trainer)


def require_found(trainer) -> None:
    """Refuse an optimizer that would train a parameter with another rate than its own."""
    built = trainer.optimizer
    for wrapped in ("fp32_optimizer", "wrapped_optimizer"):
        built = getattr(built, wrapped, built)
    wanted = [p for p in trainer.model.parameters() if p.requires_grad and own_rate(p) is not None]
    if wanted and not hasattr(built, "ratios_to_lr"):
        raise UserError(
            f"{len(wanted)} parameters have their own learning rate (as by --head-plif-lr), "
            "but this optimizer has a single one: with --fp16 add --fp16-no-flatten-grads; "
            "--optimizer composite and --ddp-backend fully_sharded cannot do it"
        )
