"""Refuse binarised data that is missing, damaged, or of another dictionary, before it is used.

Missing data. What breaks: a mistyped DATA directory ends in a traceback with `FileNotFoundError`,
an empty one with `Could not infer language pair`. Why: fairseq opens files without asking whether
they are there. What we do: look for the directories and the language pair before a task is made.
Other tasks, and checkpoints that bring their own task, are left alone. Delete when: fairseq checks.

Damage. What breaks: a flipped bit in `.bin`, or in sizes and pointers of `.idx`, changes the text,
with exit code 0; a truncated file ends in errors that name none. Why: fairseq maps the files and
checks nothing in them. What we do: check that `.idx` agrees with itself, `.bin` and dictionary, and
compare `sha256sums`. The folders of `bin1:bin2` must have the words of one dictionary, as fairseq
reads that of the first alone. Raw text is left alone. Delete when: fairseq
compares checksums.
"""

import functools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import tasks, utils
from fairseq.data import Dictionary, data_utils, indexed_dataset

from highrank_plugins.common.files import (
    SUMS,
    checksum,
    digest_of_words,
    read_ledger,
    require_regular,
)
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import is_piece
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)

_WANTED = "Give the directory that `fairseq-preprocess` or `highrank data binarise` wrote."
_MAGIC = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
# files of fairseq's other formats, which are only compared with sha256sums
_OTHERS = (b"TNTIDX\x00\x00", b"HUFFIDX")
_TYPES = indexed_dataset._code_to_dtype
_VERSION = (1).to_bytes(8, "little")
_HEADER = len(_MAGIC) + len(_VERSION) + 1 + 8
_AGAIN = "copy it again, or binarise the text again"


@replaces(tasks, "setup_task")
def setup_task(stock: Callable, cfg: Any, **kwargs: Any) -> Any:
    """Check the data, then make the task; say it if the words of its dictionary are pieces."""
    data = getattr(cfg, "data", None)
    if isinstance(data, str) and not kwargs.get("from_checkpoint"):
        check_data(cfg, data)
    task = stock(cfg, **kwargs)
    symbols = getattr(getattr(task, "target_dictionary", None), "symbols", [])
    pieces = sum(map(is_piece, symbols))
    if 20 * pieces > len(symbols):
        logger.info(
            f"the dictionary holds pieces of words ({pieces:,} of {len(symbols):,} have a mark): "
            "loss, perplexity and BLEU that fairseq prints count pieces where it does not join them"
        )
    for folder in utils.split_paths(data) if isinstance(data, str) else ():
        for dictionary in vars(task).values():
            if isinstance(dictionary, Dictionary):
                _require_same_words(Path(folder), dictionary)
    return task


def check_data(cfg: Any, data: str) -> None:
    folders = utils.split_paths(data)
    for folder in folders:
        if not os.path.isdir(folder):
            raise UserError(f"DATA {folder}: no such directory. {_WANTED}")
    task = getattr(cfg, "_name", None) or getattr(cfg, "task", None)
    is_unknown = task == "translation" and None in (cfg.source_lang, cfg.target_lang)
    if is_unknown and None in data_utils.infer_language_pair(folders[0]):
        raise UserError(
            f"DATA {folders[0]}: it has no sentence pairs, such as train.en-de.en.idx. {_WANTED}"
        )


@replaces(indexed_dataset, "dataset_exists")
def dataset_exists(stock: Callable, path: str, impl: str) -> bool:
    _has_both(path)
    return stock(path, impl)


@replaces(indexed_dataset, "make_dataset")
def make_dataset(
    stock: Callable, path: str, impl: str, fix_lua_indexing: bool = False, dictionary: Any = None
) -> Any:
    if _has_both(path):
        _require_same_words(Path(path).parent, dictionary)
        _check_split(path, None if dictionary is None else len(dictionary))
    return stock(path, impl, fix_lua_indexing, dictionary)


@replaces(Dictionary, "add_from_file")
def add_from_file(stock: Callable, dictionary: Dictionary, f: Any) -> None:
    if not isinstance(f, str) or not os.path.exists(f):
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
    found.add_from_file(path)
    return found.read_from[1]


def _has_both(path: str) -> bool:
    """Whether a split is there; raise FileNotFoundError if only a part of it is."""
    index, *_ = files = [Path(f"{path}.idx"), Path(f"{path}.bin")]
    for file in files:
        require_regular(file)
    is_pair = re.fullmatch(r"((?:train|valid)\.(.*?))\.(.*)\.idx", index.name)
    if is_pair and index.exists() and is_pair[3] in (names := is_pair[2].split("-")):
        files += [index.with_name(f"{is_pair[1]}.{n}.idx") for n in names if n != "None"]
    there = [file.name for file in files if file.exists()]
    for file in files if there else ():
        if not file.exists():
            raise FileNotFoundError(f"{file} is missing, although {there[0]} exists; {_AGAIN}")
    return bool(there)


def _version(path: str | Path) -> tuple[int, ...]:
    """Return what changes when a file is rewritten."""
    state = os.stat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


def _check_split(path: str, num_words: int | None) -> None:
    """Check both files of a split."""
    index, data = Path(f"{path}.idx"), Path(f"{path}.bin")
    _compare_with_sums(index)
    with index.open("rb") as file:
        header = file.read(_HEADER)
    total = None
    if header.startswith(_MAGIC):
        if len(header) < _HEADER or header[9:17] != _VERSION or header[17] not in _TYPES:
            raise _damaged(index, "its header is not of fairseq's format")
        dtype, count = np.dtype(_TYPES[header[17]]), int.from_bytes(header[18:], "little")
        total = _check_sizes(index, data, dtype, count, num_words is not None)
    elif not header.startswith(_OTHERS):
        raise _damaged(index, "it does not begin like an index of fairseq")
    if total and num_words is not None:
        numbers = np.memmap(data, dtype, "r")
        for number in (numbers.max(), numbers.min()):
            if not 0 <= number < num_words:
                said = f"it holds the word number {number}, but the dictionary has {num_words}"
                raise _damaged(data, f"{said} words; either file may be damaged")
    _compare_with_sums(data)


def _check_sizes(index: Path, data: Path, dtype: np.dtype, count: int, has_words: bool) -> int:
    """Return the sum of the sizes; pointers and the length of .bin follow from them."""
    size, total = index.stat().st_size, 0
    if size != _HEADER + 12 * count:
        raise _damaged(index, f"it has {size} bytes, but declares {count} sentences")
    if count:
        sizes = np.memmap(index, np.int32, "r", _HEADER, count)
        pointers = np.memmap(index, np.int64, "r", _HEADER + 4 * count, count)
        ends = np.cumsum(sizes, dtype=np.int64)
        wrong = (sizes < has_words) | (pointers != (ends - sizes) * dtype.itemsize)
        if wrong.any():
            place = int(wrong.argmax())
            raise _damaged(
                index,
                f"sentence {place} has {sizes[place]} numbers at byte {pointers[place]}, which "
                "does not follow the previous sentence",
            )
        total = int(ends[-1])
    size, declared = data.stat().st_size, total * dtype.itemsize
    if size != declared:
        raise _damaged(data, f"{index.name} declares {declared} bytes, but it has {size}")
    return total


def _compare_with_sums(path: Path) -> None:
    sums = read_ledger(path.parent / SUMS)
    if path.name in sums and checksum(path) != sums[path.name]:
        raise UserError(
            f"{path} is damaged, or was written after {path.with_name(SUMS)}, which records "
            f"another sha256; {_AGAIN}. If the file is right, delete {SUMS}"
        )


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged: {reason}; {_AGAIN}")
