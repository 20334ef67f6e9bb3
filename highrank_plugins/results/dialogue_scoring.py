"""Score several responses against several references: precision, recall (Zhao et al. 2017)."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.score import Score
from highrank_plugins.results.scoring import ScoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ORDERS = (1, 2, 3, 4)
# sentences of one context, each a list of words
Sentences = Sequence[Sequence[str]]


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str]) -> list[float]:
    """Return BLEU-1 to BLEU-4 of a sentence, by NLTK with its seventh smoothing.

    The smoothing is Chen and Cherry's (2014), with which dialogue systems were scored in
    2017. A perfect sentence has more than 1: with at least five words 1.333, 1.217, 1.154, 1.117.
    """
    bleu, smoothing = _nltk()
    weights = [(1 / order,) * order for order in ORDERS]  # the highest order sets the smoothing
    return [
        float(bleu([reference], hypothesis, weights=own, smoothing_function=smoothing))
        for own in weights
    ]


@cache
def _nltk() -> tuple[Any, Any]:
    try:
        from nltk.translate.bleu_score import SmoothingFunction
        from nltk.translate.bleu_score import sentence_bleu as bleu
    except ModuleNotFoundError:
        raise ValueError("BLEU of responses needs nltk: pip install nltk") from None
    return bleu, SmoothingFunction().method7


def precision_recall(hypotheses: Sentences, references: Sentences) -> "NDArray":
    """Return precision and recall of one context, for BLEU-1 to BLEU-4: [2, 4] in float64.

        precision = 1/N Σ_i max_j BLEU(h_i, r_j),   recall = 1/M Σ_j max_i BLEU(h_i, r_j)

    Args:
        hypotheses: N ≥ 1 responses of a system.
        references: M ≥ 1 reference responses.
    """
    import numpy as np

    scores = np.array([[sentence_bleu(h, r) for r in references] for h in hypotheses])
    return np.stack([scores.max(axis=1).mean(axis=0), scores.max(axis=0).mean(axis=0)])


def dialogue_scores(contexts: Sequence[tuple[Sentences, Sentences]]) -> dict[str, Score]:
    """Return means over contexts: `bleu1_precision`, … `bleu4_recall`, about 0 to 1.

    Args:
        contexts: (hypotheses, references) of each, see `precision_recall`.
    """
    import numpy as np
    from tqdm import tqdm

    from highrank_plugins.common.progress import bar_options

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
