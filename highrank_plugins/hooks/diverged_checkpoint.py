"""A training resumes from weights that are NaN, and says nothing of the file.

What breaks: `checkpoint_last.pt`, `--restore-file` or `--finetune-from-model` holds weights that
are NaN or infinite, since its training diverged or a script wrote it so. The training ends in its
first update, with an error of gradients that does not name the file, or in a traceback.
Why: `Trainer.load_checkpoint` does not look at the numbers that it loads.
What we do: look once, after loading, and refuse. Weights that overflow in `--fp16` are found, too.
It costs about 0.1 s per gigabyte, and waits once for a GPU.
Delete when: fairseq looks at them.
"""

import torch
from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, filename, *args, **kwargs):
    """Load as fairseq does.

    Raises:
        UserError: A weight is not finite; names the file, the weight and what to do.
    """
    extra_state = stock(trainer, filename, *args, **kwargs)
    bad = not_finite(trainer.get_model()) if extra_state is not None else []
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise UserError(
            f"{filename}: its weights are NaN or infinite ({bad[0]}{more}), so its training has "
            "diverged. Name an earlier checkpoint by --restore-file or --finetune-from-model, or "
            "move this one away to resume from the newest other in --save-dir; lower --lr"
        )
    return extra_state


@torch.no_grad()
def not_finite(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that hold NaN or an infinity."""
    named = [(name, p) for name, p in model.named_parameters() if p.numel()]
    if not named:
        return []
    finite = torch.stack([torch.stack(p.aminmax()).isfinite().all() for _, p in named])
    return [
        name for (name, _), is_finite in zip(named, finite.tolist(), strict=True) if not is_finite
    ]
