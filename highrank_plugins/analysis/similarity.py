"""Measure whether similar words have similar rows of the vocabulary matrix."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity


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


def read_word_pairs(path: str | os.PathLike[str]) -> list[WordPair]:
    """Read the pairs of a benchmark: two words and a number per line, with blanks between."""
    pairs = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                first, second, score = line.split()
                pairs.append(WordPair(first, second, float(score)))
            except ValueError:
                place = f"{os.fspath(path)}:{number}"
                raise ValueError(
                    f"{place}: expected two words and a number, got {line.strip()!r}"
                ) from None
    if not pairs:
        raise ValueError(f"{os.fspath(path)}: the file has no word pairs")
    return pairs


def word_similarity(
    vectors: Tensor,
    vocabulary: Mapping[str, int] | Sequence[str],
    pairs: Iterable[WordPair | tuple[str, str, float]],
) -> Similarity:
    """Correlate cosines with people's scores, by Spearman (as in Parthiban et al. 2021).

    Pairs are lower-cased and used if both words are known; ranks of ties are averaged. Vectors
    [M, d] have a row per word; a sequence has the words in the order of the rows.
    """
    rows = vocabulary
    if not isinstance(rows, Mapping):
        rows = {word: row for row, word in enumerate(rows)}
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


def _rows(vectors: Tensor, vocabulary: Mapping[str, int], words: Sequence[str]) -> Tensor:
    ids = [vocabulary[word] for word in words]
    for word, row in zip(words, ids, strict=True):
        if not 0 <= row < len(vectors):
            raise ValueError(f"{word!r} is row {row}, but there are {len(vectors)} vectors")
    rows = vectors[torch.tensor(ids, device=vectors.device)].detach().double().cpu()
    for word, norm in zip(words, rows.norm(dim=-1).tolist(), strict=True):
        if not norm > 0:
            raise ValueError(f"the vector of {word!r} has norm {norm}, so it has no direction")
    return rows
