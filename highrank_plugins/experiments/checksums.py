"""SHA-256 sums of files: given ones, and a ledger for those that nobody published."""

import hashlib
import os
import re
from pathlib import Path

from highrank_plugins.experiments.record import write_text

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


class ChecksumError(ValueError):
    """A file is not the one that was meant, or a sum is none."""


def sha256_of(path: Path) -> str:
    """The sum in hexadecimal digits; reads the file in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sum(path: Path, expected: str) -> None:
    """Compare a file with a published sum.

    Raises:
        ChecksumError: `expected` is no sum, or the file has another one; names both.
    """
    if not re.fullmatch("[0-9a-f]{64}", expected):
        raise ChecksumError(f"sha256 {expected!r}: expected 64 hexadecimal digits in lower case")
    found = sha256_of(path)
    if found != expected:
        raise ChecksumError(_differs(path, found, f"should be {expected}"))


def check_in_ledger(path: Path, name: Path, ledger: Path) -> bool:
    """Compare a file with what the ledger says of `name`; record it if the ledger says nothing.

    A ledger is what `sha256sum` writes, with names relative to its folder.

    Args:
        path: where the file is now.
        name: where it will be.
    Returns:
        Whether the sum is a new one.
    Raises:
        ChecksumError: the file has another sum, or the ledger is damaged.
    """
    sums = read_ledger(ledger) if ledger.exists() else {}
    key = os.path.relpath(name, ledger.parent)
    found = sha256_of(path)
    if key not in sums:
        lines = [f"{value}  {other}\n" for other, value in {**sums, key: found}.items()]
        ledger.parent.mkdir(parents=True, exist_ok=True)
        write_text(ledger, "".join(lines))
        return True
    if sums[key] != found:
        raise ChecksumError(_differs(path, found, f"was {sums[key]} when {ledger} was written"))
    return False


def read_ledger(ledger: Path) -> dict[str, str]:
    """Sums by name.

    Raises:
        ChecksumError: a line is not of that form; names it.
    """
    sums = {}
    for number, line in enumerate(ledger.read_text(encoding="utf-8").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match:
            raise ChecksumError(
                f"{ledger}:{number}: expected a sha256, two spaces and a name; delete the line"
            )
        sums[match[2]] = match[1]
    return sums


def _differs(path: Path, found: str, expected: str) -> str:
    return (
        f"{path}: its sha256 is {found} and {expected}: the file is damaged or another one; delete "
        "it and fetch it again"
    )
