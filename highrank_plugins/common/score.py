"""A number to report, with what another needs to get it again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One metric: its value and its signature, such as sacrebleu's."""

    value: float
    signature: str
