"""What the vocabulary matrix of a checkpoint says about words; no text is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from highrank_plugins.analysis import (
    Similarity,
    read_word_pairs,
    unargmaxable_classes,
    word_similarity,
)
from highrank_plugins.analysis.progress import Progress, silent
from highrank_plugins.heads import Head, Softmax

from .loading import build, open_checkpoint, pick_device
from .output_layer import head_of


class Vocabulary(NamedTuple):
    """An output layer and the dictionary of its classes."""

    head: Head
    dictionary: Any


def load_vocabulary(checkpoint: Path, data: str) -> Vocabulary:
    """The layer of a checkpoint of any kind, on the CPU.

    Raises:
        ValueError, OSError: see `Collector`.
    """
    model, task = build(open_checkpoint(checkpoint, data), pick_device("cpu"))
    return Vocabulary(head_of(model, str(checkpoint)), task.target_dictionary)


def similarities(vocabulary: Vocabulary, files: Sequence[Path]) -> dict[str, Similarity]:
    """`word_similarity` of the rows of the vocabulary matrix, by file of pairs.

    Words are looked up as the dictionary has them, special symbols apart.

    Raises:
        ValueError: a line that is no pair; a vector that is zero or NaN. OSError.
    """
    dictionary = vocabulary.dictionary
    rows = {dictionary[row]: row for row in range(dictionary.nspecial, len(dictionary))}
    pairs = {str(path): read_word_pairs(path) for path in files}  # all are read first
    return {
        name: word_similarity(vocabulary.head.weight, rows, some) for name, some in pairs.items()
    }


@dataclass(frozen=True)
class Unargmaxable:
    """The words that no context makes the most probable; None where that is not applicable."""

    applicable: bool
    reason: str
    words: list[str] | None
    classes: list[int] | None


def unargmaxable_words(
    vocabulary: Vocabulary, bound: float | None = None, progress: Progress = silent
) -> Unargmaxable:
    """`unargmaxable_classes` as words; says so where the layer is a mixture.

    Args:
        bound: only features with |h_i| ≤ bound count.
        progress: see `unargmaxable`.
    Raises:
        ValueError: a bound that is not above 0; parameters that are not finite.
    """
    head, dictionary = vocabulary
    if type(head) is not Softmax:
        reason = (
            f"not applicable: the probabilities of {type(head).__name__} do not follow the order "
            "of logits that are linear in the features"
        )
        return Unargmaxable(False, reason, None, None)
    classes = unargmaxable_classes(head, bound=bound, progress=progress).tolist()
    return Unargmaxable(True, "", [dictionary[c] for c in classes], classes)
