"""Read lines of parallel text from plain files, NAME.gz, and the NAME.sgm of WMT's test sets."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from highrank_plugins.data.parallel.checking import DAMAGE, TextError, open_binary

Pair = tuple[bytes, bytes]
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


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

    A segment is what sacreBLEU takes for one: a line that begins with <seg, without its tags.
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
    except DAMAGE as error:
        raise TextError(f"{path}:{lines + 1}: damaged ({error}); copy or fetch it again") from None
