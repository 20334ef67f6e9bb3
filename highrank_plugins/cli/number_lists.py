"""Numbers separated by commas, as an option has them."""

from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers in `text`.

    Args:
        option: its name, for the message.
        kind: int or float.
    Raises:
        ValueError: no such numbers; names the option.
    """
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} {text}: expected {what} separated by commas") from None
