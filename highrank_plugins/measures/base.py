"""Define the contract of a measure.

A measure is a class in a module of this package, registered under the module's name. From that
follows `highrank measure NAME` with a flag for each argument of the constructor. So do a block of
that name in configurations, scores in records and a section of the card. A column of tables is a
line of `results/metrics.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from highrank_plugins.analysis.retention import ColumnSpace, column_space
from highrank_plugins.common.formatting import Figure
from highrank_plugins.common.names import Score
from highrank_plugins.heads import Head
from highrank_plugins.heads.registry import Registry

MEASURES: Registry[type[Measure]] = Registry("measure")
register_measure = MEASURES.register
Found: TypeAlias = Mapping[str, Any]  # a result as stored in its JSON file
Rows: TypeAlias = list[tuple[str, str]]
# numbers for a line of the log, and values for histograms, by the names of docs/howto/monitoring.md
Snapshot: TypeAlias = dict[str, float | Tensor]


class Measure:
    """Define what all measures have in common.

    The arguments of the constructor are the options of `highrank measure NAME`. Their annotations,
    `Annotated[type, "help"]`, become the help.
    """

    title: str = ""  # heading on cards
    about: str = ""  # one or two sentences for cards: what the numbers say
    hidden: ClassVar[tuple[str, ...]] = ()  # fields of the result that are too long for a terminal
    on_card: ClassVar[bool] = True
    of_a_split: ClassVar[bool] = False  # whether the command has --split
    compares: ClassVar[bool] = False  # whether `compare` merges what two checkpoints observe
    needs_other: ClassVar[bool] = False  # whether one checkpoint alone says nothing
    # whether the command takes checkpoints of one training run, which `figures_of_many` draws
    of_many: ClassVar[bool] = False

    @classmethod
    def command(cls, name: str) -> str:
        """Return the command that writes a NAME.json which `scores` reads."""
        return f"highrank measure {name.replace('_', '-')}"

    @classmethod
    def for_card(cls, words: Words) -> Self:
        """Return the measure with the options that a card takes; a ValueError is shown there."""
        return cls()

    @classmethod
    def scores(cls, found: Found, split: str) -> dict[str, Score]:
        """Return the scores that a record keeps of a result; names of metrics begin with `split`.

        A KeyError or TypeError means that `found` is not a result of this measure.
        """
        return {}

    @classmethod
    def tokens_read(cls, found: Found) -> int | None:
        """Return the number of tokens that a result covers, or contexts, which are one before each.

        None if it reads no text.
        """
        return found.get("tokens", found.get("contexts"))

    def figures(self, result: Any) -> list[Figure]:
        """Return the figures of a result, the most informative first."""
        return []

    def rows(self, result: Any) -> Rows:
        """Return the lines of a card's table, a label and its value each; none: not on the card."""
        return []

    @classmethod
    def monitor(cls, batch: MonitoredBatch) -> Snapshot:
        """Return what `--head-monitor` shows of a head in training; nothing by default."""
        return {}


class TextMeasure(Measure):
    """Measure what a model predicts along a text, in one pass of blocks of tokens.

    Each of several processes observes some consecutive blocks and sends its `part` to the first
    one, which merges all parts.
    """

    of_a_split = True
    card_tokens: ClassVar[int | None] = None  # the largest number of tokens that a card measures

    def start(self, words: Words, dtype: torch.dtype = torch.float32) -> None:
        """Prepare for a text; `dtype` is the precision in which the model computes.

        A ValueError says that the measure or its options do not fit the layer.
        """
        self.words = words

    def observe(self, block: Block) -> None:
        """Observe the next tokens."""
        raise NotImplementedError

    def part(self) -> Any:
        """Return what this process has observed; it can be pickled."""
        raise NotImplementedError

    def merge(self, parts: Sequence[Any]) -> Any:
        """Return the result, a dataclass, from the parts of all processes in order."""
        raise NotImplementedError

    def compare(self, parts: Sequence[Any], other: Self, its_parts: Sequence[Any]) -> Any:
        """Return the result of two checkpoints that have observed the same text."""
        raise NotImplementedError


class CollectingMeasure(TextMeasure):
    """Keep some tensors of each block, whose rows are joined over blocks and processes."""

    def start(self, words: Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        self._observed: list[Sequence[Tensor]] = []

    def observe(self, block: Block) -> None:
        self._observed.append(self.seen(block))

    def seen(self, block: Block) -> Sequence[Tensor]:
        """Return what is kept of a block."""
        raise NotImplementedError

    def part(self) -> Any:
        return [torch.cat(of) for of in zip(*self._observed, strict=True)]

    @staticmethod
    def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return what all processes have kept, on the device of the first."""
        device = parts[0][0].device
        return [torch.cat([own.to(device) for own in of]) for of in zip(*parts, strict=True)]


class ContextMeasure(CollectingMeasure):
    """Keep the features [n, F] and the words [n] of a text, and compare its contexts at the end."""

    compares = True

    def seen(self, block: Block) -> Sequence[Tensor]:
        return block.features, block.target

    def same_text(
        self, parts: Sequence[Any], other: TextMeasure, its_parts: Sequence[Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of two checkpoints and the words; refuse contexts of other texts."""
        (own, target), (its, its_target) = (
            self.joined([part[:2] for part in of]) for of in (parts, its_parts)
        )
        if self.words.dictionary != other.words.dictionary:
            raise ValueError(
                "the two checkpoints have different dictionaries: their classes are different words"
            )
        if not torch.equal(target.cpu(), its_target.cpu()):
            raise ValueError(
                "the two checkpoints read different contexts of the split and cannot be matched: "
                "their --tokens-per-sample, --sample-break-mode or kind of model differ"
            )
        return own, its, target


def in_float64(head: Head) -> Head:
    """Return a head whose matrix keeps its rank, also if it is a product of other parameters."""
    return deepcopy(head).double() if parametrize.is_parametrized(head, "weight") else head


class WeightMeasure(Measure):
    """Measure the output layer alone, without a text."""

    def measure(self, words: Words) -> Any:
        """Return the result, a dataclass; a ValueError says why the layer has none."""
        raise NotImplementedError

    def figures_of_many(self, found: Sequence[Found]) -> list[Figure]:
        """Return figures of results along a training run, each with its number of `updates`."""
        return []


class AdaptiveEvaluation(Measure):
    """Read the perplexity of a model that adapts to the text, which another command has written."""

    of_a_split = True
    on_card = False  # it takes too long
    kind: ClassVar[str]

    @classmethod
    def command(cls, name: str) -> str:
        return f"highrank evaluate {cls.kind}"

    @classmethod
    def scores(cls, found: Found, split: str) -> dict[str, Score]:
        value, tokens = found["metrics"]["perplexity"], found["tokens"]
        signature = f"tokens:{tokens}|eval:{cls.kind}"
        mass = found.get("certificate", "")
        return {f"{split}_{cls.kind}_perplexity": Score(round(value, 2), signature, mass)}


@dataclass(frozen=True)
class Words:
    """Hold an output layer and fairseq's dictionary of its classes; None for one without data.

    counts: how often the training text has each class [M]; only cards read that text.
    first: return the layer as the training run drew it; None if nobody knows.
    """

    head: Head
    dictionary: Any
    counts: Tensor | None = None
    first: Callable[[], Head] | None = None

    def word(self, index: int) -> str:
        """Return the word of a class, or its number where words are unknown."""
        return f"#{index}" if self.dictionary is None else str(self.dictionary[index])


class Block:
    """Hold n tokens of a text; each quantity is computed once, at its first use.

    `features` [n, F] are the inputs of the layer, `target` [n] the words to predict. `first` is the
    position of the first word in the text.
    """

    def __init__(self, head: Head, features: Tensor, target: Tensor, first: int) -> None:
        self.head, self.features, self.target, self.first = head, features, target, first

    @cached_property
    def log_probs(self) -> Tensor:
        """Return log P of every class [n, M]."""
        with torch.no_grad():
            log_probs = self.head.log_probs(self.features)
        self.refuse_nan(log_probs, "log-probabilities")
        return log_probs

    @cached_property
    def logits(self) -> Tensor | None:
        """Return f(z) [n, M], whose log_softmax is `log_probs`; None if K vectors are mixed."""
        if not self.head.has_logits:
            return None
        with torch.no_grad():
            logits = self.head.logits(self.features)
        self.refuse_nan(logits, "logits")
        return logits

    def refuse_nan(self, values: Tensor, name: str) -> None:
        """Refuse NaN in values [n, …] of this block by a FloatingPointError."""
        broken = values.isnan().any(1)
        if broken.any():
            raise FloatingPointError(
                f"token {self.first + int(broken.nonzero()[0])} of the text: {name} are NaN. The "
                "checkpoint has diverged, or overflows; take an earlier one. What was collected "
                "before it is kept"
            )


@dataclass
class MonitoredBatch:
    """Hold a head at one update of its training run, and the counted tokens of a batch, if any.

    These are `features` [n, F] in the head's dtype, without graph, and `target` [n].
    """

    head: Head
    features: Tensor | None = None
    target: Tensor | None = None

    @cached_property
    def column_space(self) -> ColumnSpace:
        """Return the column space of the vocabulary matrix, which several measures read."""
        return column_space(self.head.weight)

    def some(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Return up to `most` tokens, evenly spaced, drawing nothing; None without a batch."""
        if self.features is None or self.target is None:
            return None
        count = len(self.target)
        if count <= most:
            return self.features, self.target
        chosen = torch.arange(most, device=self.target.device) * count // most
        return self.features[chosen], self.target[chosen]
