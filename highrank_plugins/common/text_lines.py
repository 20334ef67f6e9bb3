"""Decode lines of text strictly; report invalid text with file, line and column."""

from codecs import BOM_UTF8
from pathlib import Path

from highrank_plugins.common.user_error import UserError


class TextError(UserError):
    """Report unusable text; one line per problem: `file:line:column: what and what to do`."""


def decode_line(file: Path | str, number: int, line: bytes) -> str:
    """Return the text of a line, counted from 1.

    Raises:
        TextError: it is not UTF-8, holds NUL, or is the first and begins with a byte order mark.
    """
    found = decoded(line, first=number == 1)
    if isinstance(found, str):
        return found
    column, problem = found
    raise TextError(f"{file}:{number}:{column}: {problem}")


def decoded(line: bytes, *, first: bool) -> str | tuple[int, str]:
    """Return the text of a line, or column and description of the first invalid bytes."""
    if first and line.startswith(BOM_UTF8):
        return 1, "byte order mark, which would be part of the text; remove it: tail -c +4"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        byte = line[error.start]
        return column, f"byte 0x{byte:02x} is not UTF-8; convert the file with iconv"
    if "\0" in text:
        return text.index("\0") + 1, "NUL; remove it: tr -d '\\000'"
    return text
