"""Define an option of a fairseq dataclass."""

from dataclasses import field
from typing import Any


def described(text: str, default: Any = None) -> Any:
    """Return a dataclass field with its default and, where fairseq reads it, its help."""
    return field(default=default, metadata={"help": text})
