"""Read a checkpoint safely: compare its checksums and sizes, find its options, explain a failure.

torch itself compares no checksum: of 1,000 single flipped bits in a checkpoint, it silently loads
988 as other weights.
"""

import errno
import logging
import os
import pickle
import struct
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import highrank_plugins
from highrank_plugins.common.files import require_regular
from highrank_plugins.common.user_error import UserError

_BLOCK = 8 << 20
_DAMAGE = (
    zipfile.BadZipFile, EOFError, RuntimeError, UnicodeDecodeError, struct.error, zlib.error,
)  # fmt: skip
# exceptions of torch.load for an unreadable file, and of looking into what it returns
_UNREADABLE = (
    AttributeError, EOFError, LookupError, OSError, pickle.UnpicklingError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
# last words of options that size tensors, and the size up to which none is refused: defaults of the
# smallest models reach it
_SIZES = ("dim", "components", "heads", "knots")
_SMALL = 4096
logger = logging.getLogger(__name__)
_warned: set[str] = set()


class DamagedArchiveError(UserError):
    """Report a file that is truncated or damaged, or torch.save did not write it."""


def check_archive(path: str | Path, whole: bool = True) -> None:
    """Compare the contents of a file with its checksums; once per process, unless the file changes.

    Reading takes 0.4 s per gigabyte. Unless `whole`, tensors are left out.
    """
    require_regular(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise DamagedArchiveError(
            f"{path} is a link to {os.readlink(path)}, which is missing: restore that file, or "
            "remove the link"
        )
    state = os.stat(path)
    _check(str(path), whole, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))


def read_checkpoint(path: str | Path, *keys: str | int, whole: bool = False) -> Any:
    """Return what a file of torch.save holds, or the value at `keys`; nothing in it runs.

    Tensors stay on the disk, and their checksums are compared if `whole`.
    """
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint

    highrank_plugins.register()  # allows the plain classes that fairseq stores
    check_archive(path, whole)  # its messages are those to show
    try:
        value = torch.load(path, "cpu", weights_only=True, mmap=True)
        if not isinstance(value, dict):
            raise TypeError(f"it holds a {type(value).__name__}")
        for key in keys:
            value = value[key]
        return value
    except _UNREADABLE as error:
        lacks = "it lacks " * isinstance(error, KeyError)
        reason = lacks + str(error).partition("\n")[0]
        is_refused = isinstance(error, pickle.UnpicklingError)
    with suppress(*_UNREADABLE):
        if is_refused and (named := sorted(get_unsafe_globals_in_checkpoint(path))):
            reason = f"it names {', '.join(named)}, which could run code when loaded"
    raise UserError(
        f"{path} is refused: {reason}. It is damaged, or no checkpoint of plain values: move it "
        "elsewhere, and use one from a source you trust"
    )


@lru_cache(maxsize=1024)
def _check(path: str, whole: bool, identity: tuple[int, ...]) -> None:
    import torch

    try:
        if not zipfile.is_zipfile(path):
            raise DamagedArchiveError(
                f"{path} is truncated, or is not a checkpoint: it is not a zip archive. Copy it "
                "again. To convert a file from before torch 1.6: import argparse, torch; "
                "torch.serialization.add_safe_globals([argparse.Namespace]); "
                "torch.save(torch.load(old, weights_only=True), new)"
            )
        with zipfile.ZipFile(path) as archive:
            _check_entries(path, archive, whole)
        torch._C.PyTorchFileReader(path)  # Python may read a list of contents that torch cannot
    except _DAMAGE as error:
        raise _damaged(path, str(error).partition("\n")[0]) from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(path, "a part lies outside of the file") from None


def _check_entries(path: str, archive: zipfile.ZipFile, whole: bool) -> None:
    entries = archive.infolist()
    if any(e.compress_type != zipfile.ZIP_STORED or e.flag_bits & 1 for e in entries):
        raise _damaged(path, "compressed or encrypted, which torch.save never writes")
    if folders := [e.filename for e in entries if e.external_attr & 0x10]:  # MS-DOS attribute
        # torch would read nothing, and leave what was in memory as the tensor's values
        raise _damaged(path, f"{folders[0]} is marked as a folder")
    if sum(e.file_size for e in entries) > os.path.getsize(path):
        raise _damaged(path, "it declares more contents than it has bytes")
    for entry in entries:
        if not whole and entry.filename.rpartition("/")[2] != "data.pkl":
            continue
        read = 0
        with archive.open(entry) as contents:  # reading to the end compares the checksum
            while block := contents.read(_BLOCK):
                read += len(block)
        if read != entry.file_size:
            raise _damaged(path, f"{entry.filename} is too short")


def _damaged(path: str, reason: str) -> DamagedArchiveError:
    return DamagedArchiveError(
        f"{path} is damaged ({reason}): copy it again or use another checkpoint"
    )


def check_sizes_and_paths(path: str, state: dict[str, Any]) -> None:
    """Refuse weights and options that would take unbounded memory or time."""
    import torch

    options, named = saved_options(state, "model"), state.get("model")
    own = named.items() if isinstance(named, dict) else ()
    tensors = {name: t for name, t in own if isinstance(t, torch.Tensor)}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise UserError(f"{path} is refused: {name} is a sparse tensor; save it as a dense one")
    stored = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    for name, tensor in tensors.items():
        if tensor.nbytes > stored:  # a view that repeats numbers would grow to this size if copied
            raise UserError(
                f"{path} is refused: {name} declares {tensor.nbytes} bytes, but all weights "
                f"have {stored}. Use a checkpoint from a source you trust"
            )
    limits = {"layers": (len(tensors), f"{len(tensors)} tensors")}
    limits |= dict.fromkeys(_SIZES, (max(stored, _SMALL), f"{stored} bytes"))
    for name, value in options.items() if isinstance(options, dict) else ():
        most, weights_are = limits.get(str(name).rpartition("_")[2], (value, ""))
        if type(value) is int and value > most:
            raise UserError(
                f"{path} is refused: its configuration has {name} {value}, but its weights "
                f"are {weights_are}. Use a checkpoint from a source you trust"
            )
        if str(name).endswith("_path") and isinstance(value, str) and not os.path.isdir(value):
            require_regular(value)


def saved_options(state: Mapping[str, Any], block: str) -> dict[str, Any]:
    """Return a block of a checkpoint's options, if any; fairseq 0.9 and 0.10 have one for all."""
    cfg = state.get("cfg")
    found = cfg.get(block) if cfg else state.get("args")
    return vars(found) if isinstance(found, Namespace) else found or {}


def warn_without_hash(path: str, state: Mapping[str, Any]) -> None:
    """Warn, once a file, of a checkpoint that cannot show which words its numbers stand for."""
    if "dictionaries" not in (state.get("task_state") or {}) and path not in _warned:
        _warned.add(path)
        logger.warning(
            "%s holds no hash of its dictionary, so nothing can check that the dictionary here is "
            "the same. Checkpoints saved from now on hold one.",
            path,
        )


class ReasonsOf(AbstractContextManager):
    """Replace errors of building a model from a checkpoint. LOGLEVEL=DEBUG shows tracebacks.

    A configuration can lead to an error of any kind, and fairseq raises `Exception` itself. Lost
    connections and errors of files stay as they are.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from torch.distributed import DistError

        if not isinstance(error, Exception) or isinstance(error, OSError | DistError):
            return
        logger.debug("%s cannot be loaded", self.path, exc_info=error)
        # fairseq's message says nothing; its __context__ has the reason
        hidden = error.__context__ if type(error) is Exception else None
        raise UserError(_reason(self.path, hidden or error)) from None


def _reason(path: str, reason: BaseException) -> str:
    if isinstance(reason, ValueError | AssertionError) and str(reason):
        return str(reason) if path in str(reason) else f"{path}: {reason}"
    text = " ".join(str(reason).split())[:400]  # torch lists every parameter that does not fit
    if isinstance(reason, RuntimeError) or type(reason) is Exception:  # of fairseq, for DATA
        return (
            f"{path} does not fit its configuration, these options, or the dictionaries in "
            f"DATA; use those of its training run ({text})"
        )
    return (
        f"{path} describes a model that cannot be built here ({type(reason).__name__}: "
        f"{text}); check --user-dir, or use another checkpoint"
    )
