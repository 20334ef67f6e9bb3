"""Read parallel text strictly, from plain files, NAME.gz, and the NAME.sgm of WMT test sets."""

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from highrank_plugins.common.text_lines import TextError, decoded
from highrank_plugins.common.user_error import UserError

MAX_PROBLEMS = 20
MAX_WORDS = 1000  # fairseq's models have 1,024 positions
# exceptions of reading a damaged NAME.gz
DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error)
Pair = tuple[bytes, bytes]
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")
_SET = re.compile(rb"<(?:src|ref)set\b[^>]*\bsetid=\"([^\"]*)\"", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)\d\d")


def refuse_other_languages(folder: Path, languages: Collection[str]) -> None:
    """Refuse a folder with text of other languages, whose lines and pieces are of another call.

    Raises:
        UserError: it has {train,valid,test}.LANGUAGE of a language that is not among these.
    """
    for part in ("train", "valid", "test"):
        for path in sorted(folder.glob(f"{part}.*")):
            if path.stem == part and path.suffix[1:] not in languages:
                raise UserError(
                    f"{path} is of an earlier call with other languages, and would not belong to "
                    "the new files: move it away, or name another folder"
                )


def check_parallel(paths: list[Path]) -> int:
    """Read all bytes once and return the number of lines, the same in each file.

    What a file NAME.gz holds is read; lines are counted within it.

    Raises:
        TextError: a file is missing or empty, begins with a byte order mark, or has another number
            of lines. Or a line is empty, is not UTF-8, holds NUL or a carriage return, or has more
            than `MAX_WORDS` words. The message lists the first problems of all files.
    """
    problems: list[str] = []
    counts = [_check_file(path, problems) for path in paths]
    if not problems and len(set(counts)) > 1:
        have = ", ".join(f"{path} has {n} lines" for path, n in zip(paths, counts, strict=True))
        longest = paths[counts.index(max(counts))]
        problems.append(
            f"{longest}:{min(counts) + 1}: this line has no partner: {have}; "
            "line n of one file must translate line n of the other"
        )
    if problems:
        more = len(problems) - MAX_PROBLEMS
        rest = [f"… and {more} more"] if more > 0 else []
        raise TextError("\n".join(problems[:MAX_PROBLEMS] + rest))
    return counts[0]


def _check_file(path: Path, problems: list[str]) -> int:
    if not path.is_file():
        problems.append(f"{path}: no such file")
        return 0
    number = 0
    try:
        with open_binary(path) as file:
            for number, line in enumerate(file, 1):
                problem = _problem(line.removesuffix(b"\n"), first=number == 1)
                if problem:
                    column, text = problem
                    problems.append(f"{path}:{number}:{column}: {text}")
    except DAMAGE as error:
        problems.append(f"{path}:{number + 1}: damaged ({error}); copy or compress it again")
    else:
        if number == 0:
            problems.append(f"{path}: the file is empty")
    return number


def open_binary(path: Path) -> BinaryIO | gzip.GzipFile:
    """Open the bytes of a file, or what a file NAME.gz holds (reading may raise `DAMAGE`)."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _problem(line: bytes, *, first: bool) -> tuple[int, str] | None:
    """Return column (in characters, from 1) and description of a line's first problem."""
    text = decoded(line, first=first)
    if not isinstance(text, str):
        return text
    if not text.strip():
        return 1, "empty line; remove it and its partner in the other file"
    if "\r" in text:
        column = text.index("\r") + 1
        return column, "carriage return, which would split the line; remove it: tr -d '\\r'"
    words = text.split()
    if len(words) > MAX_WORDS:
        return 1, (
            f"{len(words):,} words, more than the {MAX_WORDS:,} of a model; split the line, "
            "or remove it and its partner in the other file"
        )
    return None


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield lines that belong together, as bytes without their line feeds.

    Raises:
        TextError: a file is damaged, or one ends before the other; names file and line.
    """
    number = 0
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if left is None or right is None:
            longer, shorter = (target, source) if left is None else (source, target)
            raise TextError(
                f"{longer}:{number}: this line has no partner: {shorter} ends after line "
                f"{number - 1}; line n of one file must translate line n of the other"
            )
        yield left, right
    if number == 0:
        raise TextError(f"{source}: the file is empty")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield lines, which end with line feeds only; of a .sgm, the segments. Drop byte order marks.

    A segment is, as for sacreBLEU, a line that begins with <seg, without its tags.

    Raises:
        TextError: the file is damaged, or a .sgm whose set is of another year than its name.
    """
    lines = 0
    try:
        with open_binary(path) as file:
            for line in file:
                if lines == 0:
                    line = line.removeprefix(BOM_UTF8)
                lines += 1
                if ".sgm" not in path.suffixes:
                    yield line.removesuffix(b"\n")
                elif line.startswith(b"<seg "):
                    yield _SEGMENT.sub(rb"\1", line)
                elif found := _SET.search(line):
                    _check_year(path, lines, found[1].decode(errors="replace"))
    except DAMAGE as error:
        raise TextError(f"{path}:{lines + 1}: damaged ({error}); copy or fetch it again") from None


def _check_year(path: Path, line: int, name: str) -> None:
    """Refuse the test set of another year under the name of this one."""
    wanted, found = set(_YEAR.findall(path.name)), set(_YEAR.findall(name))
    if wanted and found and not wanted & found:
        raise TextError(
            f"{path}:{line}: the set is {name}, of another year than the file's name says; "
            "put the right test set here, or choose the corpus of its year (--corpus)"
        )
