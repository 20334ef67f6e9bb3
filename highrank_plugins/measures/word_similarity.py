"""Measure how well the vocabulary matrix agrees with people on the similarity of words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from highrank_plugins.common.formatting import Bars, Figure
from highrank_plugins.common.names import Score, distinct_names
from highrank_plugins.common.text_lines import TextRules, read_text
from highrank_plugins.measures import base


class WordPair(NamedTuple):
    """Hold two words and how similar people find them."""

    first: str
    second: str
    score: float


class Similarity(NamedTuple):
    """Hold Spearman's correlation over `used` pairs (None: undefined); `missing` lack vectors."""

    spearman: float | None
    used: int
    missing: int


def read_word_pairs(path: Path) -> list[WordPair]:
    """Read the pairs of a benchmark: two words and a number per line, with blanks between."""
    pairs = []
    for number, line in enumerate(read_text(path, TextRules(foreign=True)), start=1):
        if not line.strip():
            continue
        try:
            first, second, score = line.split()
            if not math.isfinite(found := float(score)):
                raise ValueError
            pairs.append(WordPair(first, second, found))
        except ValueError:
            raise ValueError(
                f"{path}:{number}: expected two words and a number, got {line.strip()!r}"
            ) from None
    if not pairs:
        raise ValueError(f"{path}: the file has no word pairs")
    return pairs


def word_similarity(
    vectors: Tensor, rows: Mapping[str, int], pairs: Iterable[tuple[str, str, float]]
) -> Similarity:
    """Correlate cosines with people's scores, by Spearman (as in Parthiban et al. 2021).

    Pairs are lower-cased and used if both words are known; ranks of ties are averaged. Vectors are
    [M, d].
    """
    lowered = [(first.lower(), second.lower(), float(score)) for first, second, score in pairs]
    known = [pair for pair in lowered if pair[0] in rows and pair[1] in rows]
    missing = len(lowered) - len(known)
    if not known:
        return Similarity(None, 0, missing)
    first, second, scores = zip(*known, strict=True)
    cosines = cosine_similarity(_rows(vectors, rows, first), _rows(vectors, rows, second))
    judged, spearman = torch.tensor(scores, dtype=torch.float64), None
    if cosines.unique().numel() > 1 and judged.unique().numel() > 1:
        from scipy.stats import spearmanr

        spearman = float(spearmanr(cosines.numpy(), judged.numpy()).statistic)
    return Similarity(spearman, len(known), missing)


def _rows(vectors: Tensor, rows_of: Mapping[str, int], words: Sequence[str]) -> Tensor:
    rows = (
        vectors[torch.tensor([rows_of[word] for word in words], device=vectors.device)]
        .detach()
        .double()
        .cpu()
    )
    for word, norm in zip(words, rows.norm(dim=-1).tolist(), strict=True):
        if not norm > 0:
            raise ValueError(f"the vector of {word!r} has norm {norm}, so it has no direction")
    return rows


@dataclass(frozen=True)
class Similarities:
    """Hold correlation and number of pairs by file of pairs; `unknown` says why a file has none."""

    benchmarks: dict[str, Similarity]
    unknown: dict[str, str]


@base.register_measure("word_similarity")
class WordSimilarityMeasure(base.WeightMeasure):
    """Compare the word vectors with people's judgements.

    Spearman's correlation compares the vectors' cosines with people's scores of similarity. Words
    are looked up as the dictionary has them, special symbols apart.
    """

    title = "Word similarity"
    on_card = False  # it needs benchmark files

    def __init__(
        self,
        benchmark: Annotated[
            list[Path], "Benchmark file: two words and a number per line. May be repeated."
        ],
    ) -> None:
        self.benchmarks = benchmark

    def measure(self, words: base.Words) -> Similarities:
        dictionary = words.dictionary
        rows = {dictionary[row]: row for row in range(dictionary.nspecial, len(dictionary))}
        pairs = {
            str(path): read_word_pairs(path) for path in self.benchmarks
        }  # read before the work
        found = {
            name: word_similarity(words.head.weight, rows, some) for name, some in pairs.items()
        }
        none = "no correlation; {1} pairs used, {2} have a word without a vector"
        unknown = {name: none.format(*of) for name, of in found.items() if of.spearman is None}
        return Similarities(found, unknown)

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        """Return `similarity_<benchmark>` and `word_similarity`, their mean weighted by pairs."""
        del split  # rows of the vocabulary matrix belong to no split
        scores, total, used = dict[str, Score](), 0.0, 0
        for name, values in _named(found["benchmarks"]).items():
            rho, pairs = values["spearman"], values["used"]
            if rho is not None:
                signature = f"spearman|used:{pairs}|missing:{values['missing']}"
                scores[f"similarity_{name}"] = Score(rho, signature)
                total, used = total + rho * pairs, used + pairs
        if scores:
            signature = f"spearman|benchmarks:{len(scores)}|used:{used}"
            scores["word_similarity"] = Score(total / used, signature)
        return scores

    def figures(self, result: Similarities) -> list[Figure]:
        found = {name: values.spearman for name, values in _named(result.benchmarks).items()}
        known = {name: rho for name, rho in found.items() if rho is not None}
        return [Bars({"": known}, "Word similarity", ("benchmark", "Spearman's ρ"))]


def _named(benchmarks: dict[str, Any]) -> dict[str, Any]:
    """Return correlations by names of files instead of paths."""
    names = distinct_names([Path(path) for path in benchmarks])
    return dict(zip(names, benchmarks.values(), strict=True))
