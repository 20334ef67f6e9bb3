"""Damaged binarised data silently trains other words.

What breaks: a flipped bit in `.bin`, or in the sizes and pointers of `.idx`, changes the text, with
exit code 0. Negative counts in a dictionary do, too. A truncated file ends with "buffer is smaller
than requested size" or `IndexError: index out of range in self`, a missing `.bin` with `TypeError:
forward() missing … 'prev_output_tokens'`; none of them names a file.
Why: fairseq maps the files and checks nothing in them. They hold no checksums.
What we do: before a file is opened, check that both are there, that `.idx` agrees with itself and
with the length of `.bin`, and that the dictionary has all numbers. If the folder has `sha256sums`,
as `highrank data binarise` writes it, compare the files of the split and the dictionaries with it;
this notices any change. A folder whose files `highrank data binarise` was replacing when it was
killed is refused. The first process of each machine reads each file once, at the start.
The folders of `bin1:bin2`, an epoch each, must have the words of one dictionary: fairseq reads that
of the first alone. So must a folder that is binarised again after its dictionary was read.
Dictionaries need counts from 0 to 2⁶³ − 1. Raw text and remote paths are left alone.
Delete when: fairseq stores checksums and compares them.
"""

import functools
import hashlib
import logging
import os
import struct
from pathlib import Path

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, indexed_dataset

from highrank_plugins.common.checksums import (
    SUMS,
    ChecksumError,
    checksum,
    digest_of_words,
    read_ledger,
)
from highrank_plugins.common.files import require_regular
from highrank_plugins.common.folders import refuse_mixture
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)

_MAGIC = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
# files of fairseq's other formats, which are only compared with sha256sums
_OTHERS = (b"TNTIDX\x00\x00", b"HUFFIDX")
_HEADER = len(_MAGIC) + 8 + 1 + 8
_BLOCK = 1 << 20  # numbers checked at a time
_UNREADABLE = (
    AssertionError, EOFError, LookupError, MemoryError, OSError, OverflowError, RuntimeError,
    TypeError, ValueError, struct.error,
)  # fmt: skip
_AGAIN = "copy it again, or binarise the text again"


@replaces(tasks, "setup_task")
def setup_task(stock, cfg, **kwargs):
    """Make a task."""
    task = stock(cfg, **kwargs)
    data = getattr(cfg, "data", None)
    for folder in utils.split_paths(data) if isinstance(data, str) else ():
        for each in vars(task).values():
            if isinstance(each, Dictionary):
                _require_same_words(Path(folder), each)
    return task


@replaces(indexed_dataset, "dataset_exists")
def dataset_exists(stock, path, impl):
    """Whether a split's files exist."""
    _has_both(path)
    return stock(path, impl)


@replaces(indexed_dataset, "make_dataset")
def make_dataset(stock, path, impl, fix_lua_indexing=False, dictionary=None):
    """Check a split, and open it."""
    there = _has_both(path)
    if there and _is_first_here():
        _require_same_words(Path(path).parent, dictionary)
        versions = (_version(f"{path}.{suffix}") for suffix in ("idx", "bin"))
        _check_split(path, None if dictionary is None else len(dictionary), *versions)
    if not there or impl == "mmap":
        return stock(path, impl, fix_lua_indexing, dictionary)
    # formats unknown to `_check_split`
    try:
        found = stock(path, impl, fix_lua_indexing, dictionary)
    except _UNREADABLE as error:
        reason = f"fairseq cannot read it ({type(error).__name__} {error})"
        raise _damaged(Path(f"{path}.idx"), reason) from error
    if found is None and impl == "huffman":
        raise _damaged(Path(f"{path}.idx"), f"{path}.vocab, which its format needs, is missing")
    return found


@replaces(Dictionary, "add_from_file")
def add_from_file(stock, dictionary, f) -> None:
    """Read a dictionary."""
    if not isinstance(f, str):
        return stock(dictionary, f)
    refuse_mixture(Path(f).parent)
    if not os.path.exists(f):
        return stock(dictionary, f)
    require_regular(f)
    _compare_with_sums(Path(f))
    known = len(dictionary)
    try:
        text = Path(f).read_text("utf-8")  # fairseq would raise a bare Exception
        if text.startswith("\ufeff"):
            raise ValueError("1:1: byte order mark, part of the first word; remove it")
        stock(dictionary, f)
    except UnicodeDecodeError as error:
        raise UserError(f"{f}: byte {error.start} is not UTF-8; {_AGAIN}") from None
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{f}: {error}") from None
    for word, count in zip(dictionary.symbols[known:], dictionary.count[known:], strict=True):
        if not 0 <= count < 1 << 63:
            raise UserError(f"{f}: the word {word!r} has the count {count}; {_AGAIN}")
    dictionary.read_from = Path(f), digest_of_words(dictionary.symbols[known:])


def _require_same_words(folder: Path, dictionary: Dictionary | None) -> None:
    """Refuse a split whose folder has another dictionary, if it has one of that name."""
    file, words = getattr(dictionary, "read_from", (Path(), ""))
    own = folder / file.name
    if own.is_file() and _digest_of_file(str(own), *_version(own)) != words:
        raise UserError(
            f"{folder} was binarised with the dictionary {own}, whose words or their order are not "
            f"those of {file} when it was read: binarise all folders with one dictionary"
        )


@functools.lru_cache(maxsize=4096)
def _digest_of_file(path: str, *_version: int) -> str:
    found = Dictionary()
    known = len(found)
    found.add_from_file(path)
    return digest_of_words(found.symbols[known:])


def _has_both(path: str) -> bool:
    index, data = Path(f"{path}.idx"), Path(f"{path}.bin")
    refuse_mixture(index.parent)
    for file in (index, data):
        require_regular(file)
    if index.exists() != data.exists():
        missing, other = (data, index) if index.exists() else (index, data)
        raise FileNotFoundError(f"{missing} is missing, although {other.name} exists; {_AGAIN}")
    if index.exists() and index.name.startswith(("train.", "valid.")):
        split, _, rest = index.name.partition(".")
        pair, _, language = rest.removesuffix(".idx").partition(".")
        for other in pair.split("-") if language in pair.split("-") else ():
            target = index.with_name(f"{split}.{pair}.{other}.idx")
            if other != "None" and not target.exists():
                raise FileNotFoundError(
                    f"{target} is missing, although {index.name} exists; {_AGAIN}"
                )
    return index.exists()


def _is_first_here() -> bool:
    """Whether this is the first process of its machine."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _version(path: str | Path) -> tuple[int, ...]:
    """Return what changes when a file is rewritten."""
    state = os.stat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _check_split(path: str, num_words: int | None, *versions: tuple[int, ...]) -> None:
    """Check both files of a split; `versions` tells files of one name apart."""
    index, data = Path(f"{path}.idx"), Path(f"{path}.bin")
    sums = _sums(index.parent)
    _compare_with_sums(index)
    with index.open("rb") as file:
        header = file.read(_HEADER)
    total = None
    if header.startswith(_MAGIC):
        dtype, count = _read_header(index, header)
        total = _check_sizes(index, data, dtype, count, num_words is not None)
    elif not header.startswith(_OTHERS):
        raise _damaged(index, "it does not begin like an index of fairseq")
    if total is not None and num_words is not None:
        digest = _check_numbers(data, dtype, total, num_words, data.name in sums)
        _compare(data, digest, sums)
    else:
        _compare_with_sums(data)


def _read_header(index: Path, header: bytes) -> tuple[np.dtype, int]:
    version, code = int.from_bytes(header[9:17], "little"), header[17:18]
    kinds = indexed_dataset._code_to_dtype
    if len(header) < _HEADER or version != 1 or code[0] not in kinds:
        raise _damaged(index, "its header is not of fairseq's format")
    return np.dtype(kinds[code[0]]), int.from_bytes(header[18:], "little")


def _check_sizes(index: Path, data: Path, dtype: np.dtype, count: int, has_words: bool) -> int:
    """Return the sum of the sizes; pointers and the length of .bin follow from them."""
    if index.stat().st_size != _HEADER + 12 * count:
        raise _damaged(
            index, f"it has {index.stat().st_size} bytes, but declares {count} sentences"
        )
    smallest, total = (1 if has_words else 0), 0
    with index.open("rb") as sizes_file, index.open("rb") as pointers_file:
        sizes_file.seek(_HEADER)
        pointers_file.seek(_HEADER + 4 * count)
        for first in range(0, count, _BLOCK):
            many = min(_BLOCK, count - first)
            sizes = np.fromfile(sizes_file, np.int32, many).astype(np.int64)
            pointers = np.fromfile(pointers_file, np.int64, many)
            ends = total + sizes.cumsum()
            wrong = (sizes < smallest) | (pointers != (ends - sizes) * dtype.itemsize)
            if wrong.any():
                place = int(wrong.argmax())
                raise _damaged(
                    index,
                    f"sentence {first + place} has {sizes[place]} numbers at byte "
                    f"{pointers[place]}, which does not follow the previous sentence",
                )
            total = int(ends[-1])
    if data.stat().st_size != total * dtype.itemsize:
        raise _damaged(
            data,
            f"{index.name} declares {total * dtype.itemsize} bytes, but it has "
            f"{data.stat().st_size}",
        )
    return total


def _check_numbers(
    data: Path, dtype: np.dtype, total: int, num_words: int, hashed: bool
) -> str | None:
    """Return the checksum of a file if asked for; check that each number is a word's."""
    digest = hashlib.sha256()
    with data.open("rb") as file:
        for first in range(0, total, _BLOCK):
            numbers = np.fromfile(file, dtype, min(_BLOCK, total - first))
            if hashed:
                digest.update(numbers)
            most, least = numbers.max(), numbers.min()
            if not 0 <= least <= most < num_words:
                wrong = most if most >= num_words else least
                raise _damaged(
                    data,
                    f"it holds the word number {wrong}, but the dictionary has {num_words} "
                    "words; either file may be damaged",
                )
    return digest.hexdigest() if hashed else None


def _compare_with_sums(path: Path) -> None:
    sums = _sums(path.parent)
    _compare(path, checksum(path) if path.name in sums else None, sums)


def _compare(path: Path, found: str | None, sums: dict[str, str]) -> None:
    if found is not None and found != sums[path.name]:
        raise ChecksumError(
            f"{path} is damaged, or was written after {path.with_name(SUMS)}, which records "
            f"another sha256; {_AGAIN}. If the file is right, delete {SUMS}"
        )


def _sums(folder: Path) -> dict[str, str]:
    ledger = folder / SUMS
    if not ledger.exists():
        if any(folder.glob("*.idx")):  # exported models have dictionaries only
            _say_once(folder)
        return {}
    return read_ledger(ledger)


@functools.cache
def _say_once(folder: Path) -> None:
    logger.info(
        "%s has no %s, so damage that turns words into other words goes unnoticed. To add it: "
        "cd %s && sha256sum *.bin *.idx dict*.txt >%s",
        folder, SUMS, folder, SUMS,
    )  # fmt: skip


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged: {reason}; {_AGAIN}")
