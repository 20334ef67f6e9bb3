"""BLEU of one sentence against one other, smoothed as dialogue systems were scored in 2017."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

ORDERS = (1, 2, 3, 4)
_LENGTHS = (*ORDERS, 5)  # the smoothing looks one further
_K = 5.0


@dataclass(frozen=True)
class Sentence:
    """Words counted for `sentence_bleu`: `ngrams[n - 1]` has those of length n = 1 … 5."""

    length: int
    ngrams: tuple[Counter[tuple[str, ...]], ...]


def count(words: Sequence[str]) -> Sentence:
    """All that BLEU has to know of a sentence."""
    runs = (zip(*(words[start:] for start in range(n)), strict=False) for n in _LENGTHS)
    return Sentence(len(words), tuple(map(Counter, runs)))


def sentence_bleu(hypothesis: Sentence, reference: Sentence) -> list[float]:
    """BLEU-1 to BLEU-4 with the seventh smoothing of Chen and Cherry 2014, as NLTK computes it.

        BLEU-N = min(1, e^(1 − R/H)) · (p″_1 ⋯ p″_N)^(1/N)
        p″_n = (p″_{n−1} + p′_n + p′_{n+1}) / 3

    R and H are the numbers of words; p_n is the share of n-grams of the hypothesis that the
    reference has, too, each at most as often as there; p′_n = p_n, but for the j-th n ≤ N with
    p_n = 0 it is ln(H) / (5 · 2^j · number of n-grams) if H > 1; p″_0 = p_1 + 1; and p′_{N+1}
    is p_5, whatever N. Without a common word all are 0. A perfect sentence has more than 1:
    with at least five words 1.333, 1.217, 1.154 and 1.117.

    NLTK's `sentence_bleu([reference], hypothesis, weights=(1/N,) * N,
    smoothing_function=SmoothingFunction().method7)` gives the same (3.10; older versions fill
    p_n = 0 otherwise).
    """
    pairs = zip(hypothesis.ngrams, reference.ngrams, strict=True)
    matches = [(mine & theirs).total() for mine, theirs in pairs]
    if matches[0] == 0:
        return [0.0] * len(ORDERS)
    totals = [max(1, ngrams.total()) for ngrams in hypothesis.ngrams]
    filled = list(_fill_zeros(matches[:-1], totals, hypothesis.length))
    beyond = matches[-1] / totals[-1]
    penalty = exp(min(0.0, 1 - reference.length / hypothesis.length))
    return [penalty * exp(fmean(map(log, _averages(filled[:n], beyond)))) for n in ORDERS]


def _fill_zeros(matches: list[int], totals: list[int], length: int) -> Iterator[float]:
    zeros = 0
    for match, total in zip(matches, totals, strict=False):
        if match == 0 and length > 1:
            zeros += 1
            yield log(length) / (_K * 2**zeros * total)
        else:
            yield match / total


def _averages(precisions: list[float], beyond: float) -> Iterator[float]:
    before = precisions[0] + 1
    for precision, after in zip(precisions, [*precisions[1:], beyond], strict=True):
        before = (before + precision + after) / 3
        yield before
