"""Define the regularisation of an AWD-LSTM."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Rates:
    """Hold dropout rates as named in Merity et al. 2018, and the noise of Parthiban 2021.

    Args:
        dropout: on the output of the last layer, locked over time.
        dropouti: on the embedded words, locked over time.
        dropouth: between layers, locked over time.
        dropoute: on words, that is on whole rows of the embedding matrix.
        wdrop: on single entries of the recurrent matrices.
        embed_noise: standard deviation of Gaussian noise on the embedded words.
    Raises:
        ValueError: a rate outside [0, 1), a negative standard deviation.
    """

    dropout: float = 0.0
    dropouti: float = 0.0
    dropouth: float = 0.0
    dropoute: float = 0.0
    wdrop: float = 0.0
    embed_noise: float = 0.0

    def __post_init__(self) -> None:
        if not self.embed_noise >= 0:
            raise ValueError(f"embed_noise must not be negative, got {self.embed_noise}")
        for name in (f.name for f in fields(self) if f.name != "embed_noise"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {value}")
