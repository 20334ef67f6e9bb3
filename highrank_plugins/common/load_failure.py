"""Explain in one line, with the file's name, why a checkpoint cannot be loaded."""

import logging
from contextlib import AbstractContextManager
from types import TracebackType

from torch.distributed import DistError

from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)

_MOST_CHARACTERS = 400  # torch lists every parameter that does not fit


class ReasonsOf(AbstractContextManager):
    """Replace errors of building a model from a checkpoint. LOGLEVEL=DEBUG shows tracebacks.

    A configuration can lead to an error of any kind, and fairseq raises `Exception` itself. Lost
    connections and errors of files stay as they are.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, OSError | DistError):
            return
        logger.debug("%s cannot be loaded", self.path, exc_info=error)
        # fairseq's message says nothing; its __context__ has the reason
        hidden = error.__context__ if type(error) is Exception else None
        raise UserError(_message(self.path, hidden or error)) from None


def _message(path: str, reason: BaseException) -> str:
    if isinstance(reason, ValueError):
        return str(reason) if path in str(reason) else f"{path}: {reason}"
    text = " ".join(str(reason).split())[:_MOST_CHARACTERS]
    if isinstance(reason, RuntimeError):
        return (
            f"{path} does not fit its configuration, these options, or the dictionaries in "
            f"DATA; use those of its training run ({text})"
        )
    return (
        f"{path} describes a model that cannot be built here ({type(reason).__name__}: "
        f"{text}); check --user-dir, or use another checkpoint"
    )
