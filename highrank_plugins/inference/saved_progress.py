"""Save the progress of a long evaluation in a file from which it resumes after a kill."""

import pickle
import time
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils

from highrank_plugins.common.checkpoint_file import DamagedArchiveError, check_archive


class SavedProgress:
    """Keep a dictionary `progress` of plain values and tensors, and write it to a file.

    Args:
        path: the file. It is read if it exists.
        identity: plain values by name; another evaluation has other ones.
        seconds: how often `save_if_due` writes; 0: whenever it is called.
        option: the option that names another file, for messages.
    """

    def __init__(
        self, path: Path, identity: dict[str, Any], seconds: float, option: str = "--state"
    ) -> None:
        self.path, self.identity, self.seconds, self.option = path, identity, seconds, option
        self.progress: dict[str, Any] = {}
        self._saved_at = time.monotonic()
        if path.exists():
            stored = _load(path, option)
            self._check_identity(stored["identity"])
            self.progress = stored["progress"]

    def save(self) -> None:
        """Write the file, all or nothing: a kill leaves the old one or the new one."""
        stored = {"identity": self.identity, "progress": self.progress}
        checkpoint_utils.torch_persistent_save(stored, str(self.path))
        self._saved_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether the file is older than `seconds`."""
        return time.monotonic() - self._saved_at >= self.seconds

    def save_if_due(self) -> None:
        """Write the file if it is older than `seconds`."""
        if self.is_due():
            self.save()

    def remove(self) -> None:
        """Delete the file: the evaluation is over."""
        self.path.unlink(missing_ok=True)

    def _check_identity(self, stored: dict[str, Any]) -> None:
        names = dict.fromkeys([*stored, *self.identity])
        different = [n for n in names if stored.get(n) != self.identity.get(n)]
        if different:
            changes = "; ".join(
                f"{name}: {stored.get(name)} there, {self.identity.get(name)} now"
                for name in different
            )
            raise ValueError(
                f"{self.path} is the progress of another evaluation ({changes}). Resume that one, "
                f"name another file by {self.option}, or delete this one"
            )


def _load(path: Path, option: str) -> dict[str, Any]:
    """Return the contents; check the checksums inside, which torch does not."""
    try:
        check_archive(path)
        stored = torch.load(path, "cpu", weights_only=True)
        if isinstance(stored, dict) and stored.keys() == {"identity", "progress"}:
            return stored
        reason = "other contents"
    except (DamagedArchiveError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
    raise ValueError(
        f"{path}: damaged, or not the progress of an evaluation ({reason}); delete it to begin "
        f"again, or name another file by {option}"
    )
