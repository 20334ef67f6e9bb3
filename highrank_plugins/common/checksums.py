"""Compute and compare checksums; a ledger of binarised data, `sha256sums`, holds those of files."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from highrank_plugins.common.files import require_regular, write_text
from highrank_plugins.common.user_error import UserError

SUMS = "sha256sums"
_BINARISED = ("*.bin", "*.idx", "dict*.txt")
DIGITS = {"sha256": 64, "md5": 32}
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


class ChecksumError(UserError):
    """Report a checksum that does not match, or that is malformed."""


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum in hexadecimal digits; read the file in blocks."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def check_sum(path: Path, expected: str, algorithm: str = "sha256") -> None:
    """Compare a file with a published checksum of an algorithm of `DIGITS`."""
    digits = DIGITS[algorithm]
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", expected):
        raise ChecksumError(
            f"{algorithm} {expected!r}: expected {digits} hexadecimal digits in lower case"
        )
    found = checksum(path, algorithm)
    if found != expected:
        raise ChecksumError(
            f"{path}: its {algorithm} is {found} but should be {expected}: the file is "
            "damaged or a different one; delete it and fetch it again"
        )


def read_ledger(ledger: Path) -> dict[str, str]:
    """Return checksums by name, none if the ledger, which `sha256sum` could write, is missing."""
    require_regular(ledger)
    sums = {}
    text = ledger.read_text(encoding="utf-8") if ledger.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match:
            raise ChecksumError(
                f"{ledger}:{number}: expected a sha256, two spaces and a name; delete the line"
            )
        sums[match[2]] = match[1]
    return sums


def write_sums(folder: Path, others: Mapping[str, str] | None = None) -> None:
    """Write the checksums of a folder of binarised data, as `sha256sum` would, and `others`."""
    files = (path for pattern in _BINARISED for path in folder.glob(pattern))
    sums = {**(others or {}), **{path.name: checksum(path) for path in files}}
    write_text(folder / SUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))


def digest_of_words(words: Iterable[str]) -> str:
    """Return the sha256 of a dictionary's words in order, which checkpoints hold."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
