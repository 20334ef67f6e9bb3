"""Measure a model's predictions along a text: ranks of the words, entropy, bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import Band, perplexity_by_band, target_ranks
from highrank_plugins.common.formatting import Bars, Figure, percent
from highrank_plugins.common.names import Score
from highrank_plugins.measures import base

FEWEST = 50  # tokens of a perplexity that a figure shows


@dataclass(frozen=True)
class Predictions:
    """Hold, over all tokens: perplexity, mean entropy in nats, words among the k most probable.

    bands: perplexity by how often the word was in the training text, as the dictionary counts it.
    unigram_perplexity: of a model P = (n + 1) / (N + M) that knows how often, n of N, each of M
        classes is in the training text; None outside of cards.
    uncounted: perplexity of tokens that the dictionary does not count: </s>, <unk>, …; all tokens
        if its words have one count, as in a dictionary that was written by hand.
    """

    tokens: int
    perplexity: float
    nll: float
    entropy: float
    top_k_share: dict[str, float]
    bands: list[Band]
    uncounted: Band | None
    unigram_perplexity: float | None = None


@base.register_measure("predictions")
class PredictionMeasure(base.CollectingMeasure):
    """Compute top-k shares, entropy and perplexity by word.

    Words are grouped by their count in the training text.
    """

    title = "Predictions"
    about = (
        "The table has the share of tokens whose word was among the k most probable, and the mean "
        "entropy, which is the −log P that the model expects. Each word is predicted from the true "
        "words before it. Perplexities of words by their count in the training text, as the "
        f"dictionary has it, are drawn for {FEWEST} tokens and more."
    )

    def __init__(
        self,
        top: Annotated[tuple[int, ...], "Values of k, separated by commas."] = (1, 5, 10),
        bands: Annotated[
            tuple[int, ...], "Training counts at which bands end, separated by commas."
        ] = (10, 100, 1000, 10_000),
    ) -> None:
        perplexity_by_band(torch.zeros(1), torch.ones(1), bands)  # raises for invalid bands
        if min(top, default=1) < 1:
            raise ValueError(f"--top {min(top)}: must be at least 1")
        self.top, self.bands = top, bands

    @classmethod
    def for_card(cls, words: base.Words) -> Self:
        return cls(top=tuple(k for k in (1, 5, 10, 100) if k <= words.head.num_classes))

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        classes = words.head.num_classes
        for k in self.top:
            if k > classes:
                raise ValueError(f"--top {k}: must be at most {classes}, the number of classes")

    def seen(self, block: base.Block) -> Sequence[Tensor]:
        log_probs, target = block.log_probs, block.target
        nll = -log_probs.gather(1, target.unsqueeze(1)).squeeze(1).double()
        entropy = torch.special.entr(log_probs.exp()).double().sum(1)
        return [of.cpu() for of in (target, nll, target_ranks(log_probs, target), entropy)]

    def merge(self, parts: Sequence[Sequence[Tensor]]) -> Predictions:
        target, nll, rank, entropy = self.joined(parts)
        dictionary = self.words.dictionary
        of_words, special = torch.tensor(dictionary.count), dictionary.nspecial
        # equal counts of all words mean that they were not counted
        has_counts = len(of_words[special:][of_words[special:] > 0].unique()) > 1
        counts, counted = of_words[target], (target >= special) & has_counts
        unigram = None
        if (n := self.words.counts) is not None:
            unigram = float(((n.sum() + len(n)).log() - (n[target] + 1).log()).mean().exp())
        rest = perplexity_by_band(nll[~counted], torch.zeros(int((~counted).sum())), [1])[0]
        return Predictions(
            tokens=len(target),
            perplexity=float(nll.mean().exp()),
            nll=float(nll.mean()),
            entropy=float(entropy.mean()),
            top_k_share={str(k): float((rank < k).double().mean()) for k in self.top},
            bands=perplexity_by_band(nll[counted], counts[counted], self.bands),
            uncounted=rest if rest.tokens else None,
            unigram_perplexity=unigram,
        )

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        tokens = f"tokens:{found['tokens']}"
        shares = found["top_k_share"].items()
        return {
            **{f"{split}_top_{k}": Score(round(100 * share, 4), tokens) for k, share in shares},
            f"{split}_entropy": Score(found["entropy"], tokens),
        }

    def figures(self, result: Predictions) -> list[Figure]:
        bands = {_name(band): band for band in result.bands}
        if bands and result.uncounted:
            bands["</s>, …"] = result.uncounted
        drawn = {
            name: band.perplexity
            for name, band in bands.items()
            if band.perplexity is not None and band.tokens >= FEWEST
        }
        shares = {f"top {k}": share for k, share in result.top_k_share.items()}
        top = Bars({"": shares}, "Words among the k most probable", ("", "share of tokens"))
        found: list[Figure] = [replace(top, ends=(0, 1))]
        if drawn:
            title, axes = "Perplexity by training count", ("times in the training text", "")
            levels = {"all tokens": result.perplexity}
            found.insert(0, Bars({"": drawn}, title, axes, "log", (1, None), levels))
        return found

    def rows(self, result: Predictions) -> base.Rows:
        bands = {f"{_name(band)} times in training": band for band in result.bands}
        if result.uncounted:
            bands["</s> and others"] = result.uncounted
        unigram = result.unigram_perplexity
        return [
            ("tokens", f"{result.tokens:,}"),
            ("words to choose from", f"{self.words.head.num_classes:,}"),
            ("perplexity", f"{result.perplexity:,.2f}"),
            *([] if unigram is None else [("perplexity of a unigram model", f"{unigram:,.2f}")]),
            ("mean −log P", f"{result.nll:.4f} nats"),
            ("mean entropy", f"{result.entropy:.4f} nats"),
            *((f"among the top {k}", percent(s)) for k, s in result.top_k_share.items()),
            *(
                (f"perplexity, {name}", f"{band.perplexity:,.2f} of {band.tokens:,} tokens")
                for name, band in bands.items()
                if band.perplexity is not None
            ),
        ]


def _name(band: Band) -> str:
    return f"{band.low:,}+" if band.high is None else f"{band.low:,}–{band.high - 1:,}"
