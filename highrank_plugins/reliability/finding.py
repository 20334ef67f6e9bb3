"""Describe how a fault ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Describe a fault that was tried.

    Attributes:
        details: what was tried, and what was left.
        advice: what to do where it was not survived, or else a limit that the user should know.
    """

    fault: str
    survived: bool
    details: str
    advice: str = ""

    def line(self) -> str:
        """Return the finding as one line."""
        verdict = "survived" if self.survived else "FAILED"
        advice = f". {self.advice}" if self.advice else ""
        return f"{verdict:<10}{self.fault:<28}{self.details}{advice}"
