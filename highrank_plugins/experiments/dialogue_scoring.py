"""Precision and recall of several responses against several references (Zhao et al. 2017)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from highrank_plugins.experiments.scoring import Score, ScoreError
from highrank_plugins.experiments.sentence_bleu import ORDERS, count, sentence_bleu

if TYPE_CHECKING:
    from numpy.typing import NDArray

# of one context, each as its words
Sentences = Sequence[Sequence[str]]


def precision_recall(hypotheses: Sentences, references: Sentences) -> "NDArray":
    """Precision and recall of one context, for BLEU-1 to BLEU-4: [2, 4] in float64.

        precision = 1/N Σ_i max_j BLEU(h_i, r_j),   recall = 1/M Σ_j max_i BLEU(h_i, r_j)

    Args:
        hypotheses: N ≥ 1 responses of a system.
        references: M ≥ 1 good ones.
    """
    import numpy as np

    good = [count(words) for words in references]
    scores = np.array([[sentence_bleu(h, r) for r in good] for h in map(count, hypotheses)])
    return np.stack([scores.max(axis=1).mean(axis=0), scores.max(axis=0).mean(axis=0)])


def dialogue_scores(contexts: Sequence[tuple[Sentences, Sentences]]) -> dict[str, Score]:
    """Means over contexts: `bleu1_precision`, `bleu1_recall`, … `bleu4_recall`, about 0 to 1.

    Args:
        contexts: (hypotheses, references) of each, see `precision_recall`.
    Raises:
        ScoreError: there are none.
    """
    import numpy as np
    from tqdm import tqdm

    from highrank_plugins.experiments.progress_bar import bar_options

    if not contexts:
        raise ScoreError("there are no contexts to score")
    bar = tqdm(contexts, "score", unit="context", **bar_options())
    means = np.mean([precision_recall(*context) for context in bar], axis=0)
    made, good = np.sum([[len(part) for part in context] for context in contexts], axis=0)
    signature = f"smooth:nltk-method7|contexts:{len(contexts)}|hypotheses:{made}|references:{good}"
    return {
        f"bleu{order}_{name}": Score(round(float(row[order - 1]), 4), f"order:{order}|{signature}")
        for order in ORDERS
        for name, row in zip(("precision", "recall"), means, strict=True)
    }
