"""A training run resumes from NaN, and does not name the file.

What breaks: `checkpoint_last.pt`, `--restore-file` or `--finetune-from-model` holds weights that
are NaN or infinite, because its run diverged or a script wrote them. The run ends in its
first update, with an error of gradients that does not name the file, or in a traceback. If only
moments of the optimizer or averages (`--store-ema`) are, it trains on: the weights are NaN after
one update, or the averages for good.
Why: `Trainer.load_checkpoint` does not look at the numbers that it loads.
What we do: check the numbers once, after loading, and refuse NaN and infinities. Weights that
overflow in `--fp16` are found, too. It costs about 0.1 s per gigabyte, and waits once for a GPU.
Delete when: fairseq checks them.
"""

from collections.abc import Iterator

import torch
from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, filename, *args, **kwargs):
    """Load as fairseq does."""
    extra_state = stock(trainer, filename, *args, **kwargs)
    for kind, tensors, remedy in _loaded(trainer) if extra_state is not None else ():
        bad = not_finite(tensors)
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise UserError(
                f"{filename}: its {kind} are NaN or infinite ({bad[0]}{more}), so its "
                "training run has diverged, or the file was changed. Name an earlier "
                "checkpoint with --restore-file or --finetune-from-model, or move this one "
                f"away to resume from the newest other one in --save-dir; {remedy}"
            )
    return extra_state


def _loaded(trainer: Trainer) -> Iterator[tuple[str, dict[str, torch.Tensor], str]]:
    """Yield what a trainer has loaded: its name, tensors by name, and a remedy if they are bad."""
    model = trainer.get_model()
    yield "weights", dict(model.named_parameters()), "lower --lr"
    moments = getattr(trainer.optimizer.optimizer, "state", {})
    yield (
        "moments of the optimizer",
        {
            f"{key} of parameter {place}": value
            for place, state in enumerate(moments.values())
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        },
        "--reset-optimizer starts with new moments",
    )
    if trainer.cfg.ema.store_ema:
        averages = {**trainer.ema.get_model().state_dict(), **trainer.ema.fp32_params}
        yield "averages", averages, "without --store-ema it trains without them"


@torch.no_grad()
def not_finite(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or an infinity."""
    named = [(name, tensor) for name, tensor in tensors.items() if tensor.numel()]
    if not named:
        return []
    finite = torch.stack([torch.stack(t.aminmax()).isfinite().all() for _, t in named])
    return [
        name for (name, _), is_finite in zip(named, finite.tolist(), strict=True) if not is_finite
    ]
