"""Give parameters their own learning rate, and let schedulers and early stopping resume.

Groups. What breaks: all parameters have one learning rate. Why: fairseq's optimizers get a bare
list, and `set_lr` writes one number into every group; `--optimizer composite` never tells its
schedulers the validation loss. What we do: a parameter may carry its own rate (`set_own_rate`), and
becomes a group of any optimizer. The ratio to the others' rate stays the same: at `--lr 20`, a rate
of 0.02 is always 1/1000 of theirs. Delete when: fairseq's optimizers take groups.

Epochs. What breaks: a resumed run has an untouched `--lr-patience`, and counts `--patience` from 0.
Why: the plateau scheduler saves the best loss only, and early stopping keeps its numbers on
a function. What we do: save the numbers of both. Delete when: fairseq does so.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

from fairseq import optim
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq_cli import train as training
from torch import nn

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

# the only attribute that fairseq copies to the float32 copies of parameters
_ATTRIBUTE = "optim_overrides"
ADAM = "by_adam"  # in the groups of `AveragedSGD`
STOPPING = "early_stopping"  # in checkpoints


def set_own_rate(parameter: nn.Parameter, lr: float, by_adam: bool = False) -> None:
    """Train `parameter` with learning rate `lr` while the others have the first value of --lr.

    `by_adam` is for optimizers with `adam_groups`.
    """
    setattr(parameter, _ATTRIBUTE, {"optimizer": {"lr": lr, ADAM: by_adam}})


def own_rate(parameter: nn.Parameter) -> tuple[float, bool] | None:
    """Return a parameter's own rate, and whether by Adam; fairseq's users may set a rate, too."""
    found = getattr(parameter, _ATTRIBUTE, {}).get("optimizer", {})
    return (found["lr"], bool(found.get(ADAM))) if "lr" in found else None


@replaces(optim, "build_optimizer")
def build_optimizer(stock: Callable, cfg: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    built = stock(cfg, params, *args, **kwargs)
    own = {one for p in built.params if (one := own_rate(p))}
    if not own or len(built.param_groups) != 1:  # `require_found` refuses groups of others
        return built
    if any(by_adam for _, by_adam in own) and not hasattr(built.optimizer, "adam_groups"):
        raise UserError("--head-adam-lr: this optimizer has no groups with Adam: use nt_asgd")
    base = built.get_lr()
    if base is None or not (isfinite(base) and base > 0):
        raise UserError(f"a parameter with its own learning rate needs --lr above 0, got {base}")
    (first,) = built.param_groups
    everything = first["params"]
    first["params"] = [p for p in everything if own_rate(p) is None]
    settings = {name: value for name, value in first.items() if name != "params"}
    for rate, by_adam in sorted(own):
        params = [p for p in everything if own_rate(p) == (rate, by_adam)]
        group = settings | {"params": params, "lr": rate} | ({ADAM: True} if by_adam else {})
        built.optimizer.add_param_group(group)
    # not stored in the groups, because a resumed training run takes those from the checkpoint
    built.ratios_to_lr = [1.0, *(rate / base for rate, _ in sorted(own))]
    return built


@replaces(FairseqOptimizer, "set_lr")
def set_lr(_stock: Callable, built: Any, lr: float) -> None:
    ratios = getattr(built, "ratios_to_lr", [1.0] * len(built.param_groups))
    for group, ratio in zip(built.param_groups, ratios, strict=True):
        group["lr"] = lr * ratio


def require_found(trainer: Any) -> None:
    """Refuse an optimizer that would train a parameter with another rate than its own."""
    built = getattr(trainer.optimizer, "fp32_optimizer", trainer.optimizer)
    built = getattr(built, "wrapped_optimizer", built)
    wanted = [p for p in trainer.model.parameters() if p.requires_grad and own_rate(p) is not None]
    if wanted and not hasattr(built, "ratios_to_lr"):
        raise UserError(
            f"{len(wanted)} parameters have their own learning rate (as by --head-plif-lr), "
            "but this optimizer has a single one: with --fp16 add --fp16-no-flatten-grads; "
            "--optimizer composite and --ddp-backend fully_sharded cannot do it"
        )


@replaces(ReduceLROnPlateauLRSchedule, "state_dict")
def plateau_state(stock: Callable, schedule: Any) -> dict[str, Any]:
    return {**stock(schedule), "num_bad_epochs": schedule.lr_scheduler.num_bad_epochs}


@replaces(ReduceLROnPlateauLRSchedule, "load_state_dict")
def load_plateau_state(stock: Callable, schedule: Any, state_dict: dict[str, Any]) -> None:
    stock(schedule, state_dict)
    bad = state_dict.get("num_bad_epochs", schedule.lr_scheduler.num_bad_epochs)
    schedule.lr_scheduler.num_bad_epochs = bad


def stopping_numbers() -> dict[str, Any]:
    """Return the numbers of early stopping, which fairseq keeps as attributes of a function."""
    kept = vars(training.should_stop_early)
    return {"best": kept.get("best"), "num_runs": kept.get("num_runs", 0)}


def recall_stopping(extra_state: dict[str, Any] | None) -> None:
    """Restore the numbers of early stopping; start afresh without a checkpoint."""
    fresh = {"best": None, "num_runs": 0}
    vars(training.should_stop_early).update(fresh | (extra_state or {}).get(STOPPING, {}))
