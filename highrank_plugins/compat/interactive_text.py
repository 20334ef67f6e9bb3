"""fairseq reads and prints text in the encoding of the locale, and accepts invalid bytes as words.

What breaks: in the C locale, the usual one in containers, `fairseq-interactive` translates a byte
that is not UTF-8 as `<unk>`, with exit code 0. In a locale of ISO 8859-1 it takes "ü" for "Ã¼", and
`fairseq-generate` ends with `UnicodeEncodeError` at the first piece of SentencePiece. With `--input
FILE`, a carriage return within a line makes two lines, and hypotheses and lines no longer agree.
Why: standard input and output have the locale's encoding; Python decodes invalid bytes to
surrogates; and files are opened with universal line ends.
What we do: read bytes, end lines at line feeds only, and decode UTF-8 strictly, in every locale.
Print UTF-8.
Delete when: fairseq does.
"""

import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairseq import options
from fairseq_cli import interactive

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import decode_line
from highrank_plugins.common.user_error import UserError


@replaces(options, "parse_args_and_arch")
def parse_args_and_arch(stock, *args, **kwargs):
    """Return the parsed options; from then on, commands print UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")
    return stock(*args, **kwargs)


@replaces(interactive, "buffered_read")
def buffered_read(_stock, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lines of a file, or of standard input (`-`), in groups of `buffer_size`."""
    if input != "-":
        with Path(input).open("rb") as file:
            yield from _groups(file, input, buffer_size)
    elif sys.stdin is None:
        raise UserError("--input -: standard input is closed; name a file with --input")
    else:
        yield from _groups(sys.stdin.buffer, "standard input", buffer_size)


def _groups(file: Iterable[bytes], name: str, size: int) -> Iterator[list[str]]:
    lines = (decode_line(name, number, line).rstrip() for number, line in enumerate(file, 1))
    group: list[str] = []  # a tab at the start of a line is of --constraints
    for line in lines:
        group.append(line)
        if len(group) >= size:
            yield group
            group = []
    if group:
        yield group
