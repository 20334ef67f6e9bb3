"""Read parallel text strictly, from plain files, NAME.gz, and the NAME.sgm of WMT test sets."""

import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from itertools import zip_longest
from pathlib import Path

from highrank_plugins.common.text_lines import DAMAGE, TextError, open_binary
from highrank_plugins.common.user_error import UserError

Pair = tuple[bytes, bytes]
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")
_SET = re.compile(rb"<(?:src|ref)set\b[^>]*\bsetid=\"([^\"]*)\"", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)\d\d")


def refuse_other_languages(folder: Path, languages: Collection[str]) -> None:
    """Refuse a folder with text of other languages, whose lines and pieces are of another call."""
    for part in ("train", "valid", "test"):
        for path in sorted(folder.glob(f"{part}.*")):
            if path.stem == part and path.suffix[1:] not in languages:
                raise UserError(
                    f"{path} is of an earlier call with other languages, and would not belong to "
                    "the new files: move it away, or name another folder"
                )


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield lines that belong together, as bytes without their line feeds."""
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
    """
    lines = 0
    try:
        with open_binary(path) as file:
            for line in file:
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
