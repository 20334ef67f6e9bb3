"""Predict the word that should follow some contexts, and its rank."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from highrank_plugins.common.text_lines import read_text
from highrank_plugins.inference.collector import Collector
from highrank_plugins.inference.loading import LoadedModel, load_model


class Continuation(NamedTuple):
    """Hold a context, the word that followed it, how many words the model ranks above it,
    and the most probable words."""

    context: str
    word: str
    rank: int
    top: list[str]


def read_contexts(path: Path) -> list[list[str]]:
    """Return lines of words; the last word of each is to be predicted.

    A line may also begin with that word: `WORD <- CONTEXT`.
    """
    contexts = [line.split() for line in read_text(path)]
    contexts = [[*c[2:], c[0]] if c[1:2] == ["<-"] else c for c in contexts]
    for number, words in enumerate(contexts, 1):
        if len(words) < 2:
            raise ValueError(f"{path}:{number}: expected a context and the word after it")
    return contexts


END = "<eos>"  # the papers' name for the end of a line, which fairseq calls </s>


class ContextError(ValueError):
    """Say what is wrong with a context, and which one it is, from 1."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"context {number}: {what}")
        self.number, self.what = number, what


@torch.no_grad()
def continuations(
    checkpoint: Path,
    data: str,
    contexts: Sequence[Sequence[str]],
    top: int = 5,
    split: str | None = None,
) -> list[Continuation]:
    """Continue each context by a language model of any kind."""
    loaded = load_model(checkpoint, data)
    if not isinstance(loaded.model, FairseqLanguageModel):
        raise ValueError(f"{checkpoint} is not a language model")
    numbers = [_numbers(words, loaded.dictionary, n) for n, words in enumerate(contexts, 1)]
    predict = _predict_alone if split is None else partial(_predict_in_text, split=split)
    found = []
    for words, ids, log_probs in zip(contexts, numbers, predict(loaded, numbers), strict=True):
        if log_probs.isnan().any():
            raise FloatingPointError(f"{checkpoint}: log-probabilities are NaN; it has diverged")
        order = log_probs.argsort(descending=True, stable=True).tolist()
        end = loaded.dictionary.eos()
        best = [END if c == end else loaded.dictionary[c] for c in order[:top]]
        found.append(Continuation(" ".join(words[:-1]), words[-1], order.index(ids[-1]), best))
    return found


def _numbers(words: Sequence[str], dictionary: Any, number: int) -> list[int]:
    named = [dictionary.eos_word if word == END else word for word in words]
    ids = [dictionary.index(word) for word in named]
    for word, index in zip(named, ids, strict=True):
        if index in (dictionary.pad(), dictionary.bos()):
            raise ContextError(
                number,
                f"{word!r} never occurs in a text; remove it, or write <eos> for the end of a line",
            )
        if index == dictionary.unk() and word != dictionary.unk_word:
            raise ContextError(
                number,
                f"{word!r} is not in the dictionary; write {dictionary.unk_word} where the "
                "training text has it, or leave the context out",
            )
    return ids


def _predict_alone(loaded: LoadedModel, contexts: list[list[int]]) -> list[Tensor]:
    """Return log P of every class after each context, which begins a text."""
    found = []
    longest = loaded.model.max_positions()
    for number, ids in enumerate(contexts, 1):
        if len(ids) > longest:
            raise ContextError(
                number,
                f"{len(ids):,} tokens, and the model reads {longest:,}; remove words from its "
                "beginning",
            )
        source = torch.tensor([[loaded.dictionary.eos(), *ids[:-1]]])
        features = loaded.model.decoder.extract_features(source, encoder_out=None)[0][0, -1:]
        found.append(loaded.head.log_probs(features)[0])
    return found


def _predict_in_text(loaded: LoadedModel, contexts: list[list[int]], split: str) -> list[Tensor]:
    """Return log P of every class where each context first occurs in a split."""
    found: dict[int, Tensor] = {}
    longest = max(map(len, contexts))
    seen = torch.empty(0, dtype=torch.long)
    for block in Collector(loaded, split).blocks("contexts"):
        seen = torch.cat([seen[-longest:], block.target.cpu()])
        start = len(seen) - len(block.target)  # position of the block in `seen`
        for number, ids in enumerate(contexts):
            wanted = torch.tensor(ids)
            for row in (block.target.cpu() == ids[-1]).nonzero().flatten().tolist():
                end = start + row + 1
                same = end >= len(ids) and torch.equal(seen[end - len(ids) : end], wanted)
                if same and number not in found:
                    found[number] = block.log_probs[row].cpu()
        if len(found) == len(contexts):
            break
    missing = sorted(set(range(len(contexts))) - found.keys())
    if missing:
        raise ContextError(
            missing[0] + 1,
            f"not in the split {split}: copy the words from its text, with <eos> between lines, "
            "or leave --context-split out",
        )
    return [found[number] for number in range(len(contexts))]
