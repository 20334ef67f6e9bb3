"""Predict the word that should follow some contexts, and its rank."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from highrank_plugins.common.text_lines import read_text
from highrank_plugins.inference.collector import Collector
from highrank_plugins.inference.loading import LoadedModel, load_model

END = "<eos>"  # the papers' name for the end of a line, which fairseq calls </s>
Contexts = dict[str, list[str]]  # the words of a line, the last to be predicted, by FILE:LINE


class Continuation(NamedTuple):
    """Hold a context, its next word, how many words the model ranks above it, and the best."""

    context: str
    word: str
    rank: int
    top: list[str]


def read_contexts(path: Path) -> Contexts:
    """Return the words of each line, which may also be written as `WORD <- CONTEXT`."""
    contexts = {}
    for number, line in enumerate(read_text(path), 1):
        words = line.split()
        contexts[f"{path}:{number}"] = [*words[2:], words[0]] if words[1:2] == ["<-"] else words
        if len(words) < 2:
            raise ValueError(f"{path}:{number}: expected a context and the word after it")
    return contexts


@torch.no_grad()
def continuations(
    checkpoint: Path, data: str, contexts: Contexts, top: int, split: str | None
) -> list[Continuation]:
    """Continue each context by a language model of any kind."""
    loaded = load_model(checkpoint, data)
    if not isinstance(loaded.model, FairseqLanguageModel):
        raise ValueError(f"{checkpoint} is not a language model")
    ids = {place: _ids(words, loaded.dictionary, place) for place, words in contexts.items()}
    predict = _predict_alone if split is None else partial(_predict_in_text, split=split)
    predicted = predict(loaded, ids)
    found = []
    for place, words in contexts.items():
        log_probs = predicted[place]
        if log_probs.isnan().any():
            raise FloatingPointError(f"{checkpoint}: log-probabilities are NaN; it has diverged")
        order = log_probs.argsort(descending=True, stable=True).tolist()
        end = loaded.dictionary.eos()
        best = [END if c == end else loaded.dictionary[c] for c in order[:top]]
        rank = order.index(ids[place][-1])
        found.append(Continuation(" ".join(words[:-1]), words[-1], rank, best))
    return found


def _ids(words: list[str], dictionary: Any, place: str) -> list[int]:
    named = [dictionary.eos_word if word == END else word for word in words]
    ids = [dictionary.index(word) for word in named]
    for word, index in zip(named, ids, strict=True):
        if index == dictionary.unk() and word != dictionary.unk_word:
            raise ValueError(
                f"{place}: {word!r} is not in the dictionary; write {dictionary.unk_word} where "
                "the training text has it, or leave the context out"
            )
    return ids


def _predict_alone(loaded: LoadedModel, contexts: dict[str, list[int]]) -> dict[str, Tensor]:
    """Return log P of every class after each context, which begins a text."""
    found = {}
    longest = loaded.model.max_positions()
    for place, ids in contexts.items():
        if len(ids) > longest:
            raise ValueError(
                f"{place}: {len(ids):,} tokens, and the model reads {longest:,}; remove words "
                "from its beginning"
            )
        source = torch.tensor([[loaded.dictionary.eos(), *ids[:-1]]])
        features = loaded.model.decoder.extract_features(source, encoder_out=None)[0][0, -1:]
        found[place] = loaded.head.log_probs(features)[0]
    return found


def _predict_in_text(
    loaded: LoadedModel, contexts: dict[str, list[int]], split: str
) -> dict[str, Tensor]:
    """Return log P of every class where each context first occurs in a split."""
    found: dict[str, Tensor] = {}
    longest = max(map(len, contexts.values()))
    seen = torch.empty(0, dtype=torch.long)
    for block in Collector(loaded, split).blocks("contexts"):
        seen = torch.cat([seen[-longest:], block.target.cpu()])
        start = len(seen) - len(block.target)  # position of the block in `seen`
        for place in contexts.keys() - found.keys():
            wanted = torch.tensor(contexts[place])
            for row in (block.target.cpu() == wanted[-1]).nonzero().flatten().tolist():
                first = start + row + 1 - len(wanted)
                if first >= 0 and torch.equal(seen[first : start + row + 1], wanted):
                    found[place] = block.log_probs[row].cpu()
                    break
        if len(found) == len(contexts):
            return found
    missing = next(place for place in contexts if place not in found)
    raise ValueError(
        f"{missing}: not in the split {split}: copy the words from its text, with {END} between "
        "lines, or leave --split out"
    )
