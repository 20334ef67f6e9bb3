"""Report a number with what others need to reproduce it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Hold a metric's value and its signature, such as sacrebleu's."""

    value: float
    signature: str
