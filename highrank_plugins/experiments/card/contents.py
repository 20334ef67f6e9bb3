"""What a head card says: plain values, which become the page and the JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from highrank_plugins.analysis import ComponentUse, Estimate, GateSharpness, SlopeStatistics

T = TypeVar("T")


@dataclass(frozen=True)
class Absent:
    """Stands where a measure should be, and says why it is not there."""

    reason: str


Maybe: TypeAlias = T | Absent


@dataclass(frozen=True)
class Identity:
    """Which file this is about, and by what the numbers were computed.

    words: where the names of classes come from, or why they are numbers.
    """

    checkpoint: str
    sha256: str
    arch: str
    words: str
    data: str | None
    split: str | None
    tokens: int | None
    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Part:
    """Parameters of one part of the model: names, or a name with its shape; how many numbers."""

    name: str
    tensors: list[str]
    parameters: int
    trained: bool


@dataclass(frozen=True)
class Configuration:
    """Options of the head, the trunk and the training; `model` is all that fairseq stored of it."""

    head: Maybe[dict[str, Any]]
    trunk: dict[str, Any]
    training: dict[str, Any]
    model: dict[str, Any]


@dataclass(frozen=True)
class SpectrumFound:
    """`analysis.Spectrum` of a matrix, with what is read off it.

    The Press rank counts singular values above `tolerance`, which is that of `dtype`; those below
    `smallest_reliable` are rounding noise.
    `effective_rank` is by ε; `entropy_rank` is e^H of `spectral_entropy`; `decay` is
    `spectral_decay` down to the Press rank, None where that is 1.
    """

    shape: tuple[int, int]
    dtype: str
    method: str
    tolerance: float
    smallest_reliable: float
    press_rank: int
    effective_rank: dict[str, int]
    entropy_rank: float
    decay: float | None
    values: list[float]


@dataclass(frozen=True)
class Divergence:
    """Mean KL(P_i ‖ P_j) in nats: of sampled pairs, and of all of them."""

    sampled: Estimate
    all_pairs: float


@dataclass(frozen=True)
class NeverArgmax:
    """Classes that no context makes the most probable one, of how many."""

    classes: list[int]
    words: list[str]
    of: int


@dataclass(frozen=True)
class Retention:
    """`gradient_retention` of the first `tokens` predictions; quantiles over the rows' own."""

    share: float
    tokens: int
    rows: int
    quantiles: dict[str, float]


@dataclass(frozen=True)
class PriorUse:
    """`ComponentUse` as lists; `highest` is log K, the largest entropy there is."""

    mean_prior: list[float]
    top_share: list[float]
    entropy: float
    overall_entropy: float
    highest: float

    @classmethod
    def of(cls, use: ComponentUse, highest: float) -> PriorUse:
        """The same numbers."""
        shares = use.mean_prior.tolist(), use.top_share.tolist()
        return cls(*shares, use.entropy, use.overall_entropy, highest)


@dataclass(frozen=True)
class Gates:
    """Sharpness per group of words; `highest` is log K."""

    groups: list[GateSharpness]
    tokens: int
    highest: float


@dataclass(frozen=True)
class PointwiseShape:
    """A pointwise function: its curve, and a PLIF's slopes with their histogram.

    `histogram` counts slopes between consecutive `edges`; the last bin has all larger ones, too.
    """

    name: str
    z: list[float]
    f: list[float]
    slopes: SlopeStatistics | None
    edges: list[float]
    histogram: list[int]


@dataclass(frozen=True)
class Predictions:
    """How good and how sure: perplexity, mean nll and entropy in nats, share of top-k by k."""

    tokens: int
    perplexity: float
    nll: float
    entropy: float
    top_k: dict[str, float]


@dataclass(frozen=True)
class BandFound:
    """Perplexity of the tokens whose word has a training count in a band."""

    name: str
    tokens: int
    perplexity: float | None


@dataclass(frozen=True)
class Guess:
    """A word and its probability."""

    word: str
    probability: float


@dataclass(frozen=True)
class Position:
    """The word that came, its probability, its place among all (1 is the top), and the top ones."""

    word: str
    probability: float
    place: int
    top: list[Guess]


@dataclass(frozen=True)
class Sample:
    """Predictions along a piece of text, each from the true words before it.

    source: the sentence to translate; None for language models. before: the words before.
    """

    source: str | None
    before: str
    positions: list[Position]


@dataclass(frozen=True)
class Card:
    """All of it."""

    identity: Identity
    configuration: Configuration
    parameters: list[Part]
    weight_spectrum: Maybe[SpectrumFound]
    log_prob_spectrum: Maybe[SpectrumFound]
    divergence: Maybe[Divergence]
    never_argmax: Maybe[NeverArgmax]
    retention: Maybe[Retention]
    prior_use: Maybe[PriorUse]
    gates: Maybe[Gates]
    pointwise: Maybe[PointwiseShape]
    predictions: Maybe[Predictions]
    bands: Maybe[list[BandFound]]
    samples: Maybe[list[Sample]]
