"""Find the words of a text that one model predicts better than another."""

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

from highrank_plugins.cli.analyse import TextSettings
from highrank_plugins.cli.options import Checkpoint, Data, UserDir, report
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import write_text
from highrank_plugins.inference.collector import Collector


class WordPrediction(NamedTuple):
    """Hold −log P of the word that came, in nats, and the most probable words."""

    nll: float
    top: list[str]


class Disagreement(NamedTuple):
    """Hold a token that the first model predicts better, and the words before it."""

    position: int
    context: str
    word: str
    margin: float
    first: WordPrediction
    second: WordPrediction


class ModelComparison(NamedTuple):
    """Hold the tokens with at least the requested margin, the widest first.

    Of the `tokens`, `found` have this margin, and the first model gives a `share` of them a higher
    probability. `mean_margin` is the mean of −log P of the second minus that of the first, in nats.
    """

    tokens: int
    found: int
    share: float
    mean_margin: float
    disagreements: list[Disagreement]


@torch.no_grad()
def compare(
    first: Collector,
    second: Collector,
    *,
    margin: float = 1.0,
    count: int = 20,
    words: int = 30,
    top: int = 5,
) -> ModelComparison:
    """Compare the probabilities of the words that came, token by token (Yang et al. 2018, C.4).

    Both read the same text, cut alike. `margin` is in nats; `words` are shown before each of
    `count` tokens, and the `top` most probable ones.
    """
    if first.text.digest != second.text.digest:
        raise ValueError(
            "the two checkpoints do not read the same words in the same blocks; compare "
            "models with one dictionary, one task and one --tokens-per-sample"
        )
    margins: list[Tensor] = []
    history: list[int] = []
    widest: list[Any] = []  # a heap of margin, −position and both predictions
    for block, other in zip(first.blocks("compare"), second.blocks(), strict=True):
        pair = block.log_probs, other.log_probs
        nll, others = (-p.gather(1, block.target.unsqueeze(1)).squeeze(1).double() for p in pair)
        difference = others - nll
        margins.append(difference)
        history += block.target.tolist()
        for row in (difference >= margin).nonzero().flatten().tolist():
            entry = (float(difference[row]), -(block.first + row))
            if len(widest) < count or entry > widest[0][:2]:
                shown = tuple(
                    _prediction(values[row], loss[row], first.dictionary, top)
                    for values, loss in zip(pair, (nll, others), strict=True)
                )
                push = heapq.heappush if len(widest) < count else heapq.heapreplace
                push(widest, (*entry, shown))
    return ModelComparison(
        tokens=len(history),
        found=int((torch.cat(margins) >= margin).sum()),
        share=float((torch.cat(margins) > 0).double().mean()),
        mean_margin=float(torch.cat(margins).mean()),
        disagreements=list(_described(widest, history, words, first.dictionary)),
    )


def _prediction(log_probs: Tensor, nll: Tensor, dictionary: Any, top: int) -> WordPrediction:
    order = log_probs.argsort(descending=True, stable=True).tolist()
    return WordPrediction(float(nll), [dictionary[c] for c in islice(order, top)])


def _described(
    widest: list[Any], history: list[int], words: int, dictionary: Any
) -> Iterator[Disagreement]:
    for margin, minus_position, (first, second) in sorted(widest, reverse=True):
        position = -minus_position
        before = history[max(0, position - words) : position]
        context = " ".join(dictionary[word] for word in before)
        yield Disagreement(position, context, dictionary[history[position]], margin, first, second)


def disagreements(
    first: Checkpoint,
    second: Annotated[Path, "A model with the same dictionary."],
    data: Data,
    *,
    margin: float = option(1.0, "Show tokens whose −log P differs by at least this, in nats."),
    count: int = option(20, "Number of tokens to show.", ge=1),
    words: int = option(30, "Number of words to show before each.", ge=1),
    top: int = option(5, "Number of most probable words to show.", ge=1),
    settings: TextSettings,
    contexts: Path | None = option(None, "File to write for the experiment `contexts`."),
    output: Path | None = option(None, "JSON file to write the result to."),
    user_dir: UserDir = None,
) -> None:
    """Find the tokens that the first model predicts better.

    Example: python -m recipes.synthetic disagreements mos.pt moc.pt data-bin --margin 2

    The widest margin comes first. Yang et al. (2018) chose the contexts of their table 14 in this
    way, with MoS and MoC.
    """
    collectors = [Collector.open(path, data, **dict(settings)) for path in (first, second)]
    if math.isnan(margin):
        raise ValueError(f"--margin {margin}: must be a number of nats")
    found = compare(*collectors, margin=margin, count=count, words=words, top=top)
    report(found, output)
    if contexts is not None:
        lines = [f"{one.context} {one.word}\n" for one in found.disagreements if one.context]
        write_text(contexts, "".join(lines).replace("</s>", "<eos>"))
        if len(lines) < len(found.disagreements):
            typer.echo(f"{contexts}: the first word of the text has no context", err=True)
