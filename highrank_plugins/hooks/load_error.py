"""fairseq hides why a checkpoint fails to load; raise the reason.

What breaks: a checkpoint of another head, of other sizes or with another dictionary ends, whether
resumed or given by `--finetune-from-model`, with `Exception: Cannot load model parameters from
checkpoint …; please ensure that the architectures match.` A model that knows the reason and the
remedy is not heard.
Why: `Trainer.load_checkpoint` replaces every error of loading the parameters by that sentence.
What we do: where the reason is a ValueError, raise that, with the name of the file. Others, such as
the RuntimeError of torch with its list of names, end as before.
Delete when: `Trainer.load_checkpoint` names the reason in its own message.
"""

from contextlib import AbstractContextManager

from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.checkpoint_identity import shown_to


class _ReasonLast(AbstractContextManager):
    """Replace an error raised while handling a ValueError by that ValueError."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __exit__(self, kind, error, traceback) -> None:
        # fairseq's class is Exception itself; no narrower handler would see it
        if kind is Exception and isinstance(error.__context__, ValueError):
            raise UserError(f"{self.path}: {error.__context__}") from None


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, filename, *args, **kwargs):
    """Load as fairseq does.

    Raises:
        UserError: the model's own, about parameters that do not fit, or the task's; names the
            file.
    """
    with _ReasonLast(filename), shown_to(trainer, filename):
        return stock(trainer, filename, *args, **kwargs)
