"""Predict the word that should follow some contexts, and its rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq.models import FairseqLanguageModel

from highrank_plugins.inference.loading import load_model


class Continuation(NamedTuple):
    """Hold a context, the word that followed it, how many words the model ranks above it,
    and the most probable words."""

    context: str
    word: str
    rank: int
    top: list[str]


def read_contexts(path: Path) -> list[list[str]]:
    """Return lines of words, of which the last is to be predicted.

    Raises:
        ValueError: a line with fewer than two words, or no line; names the line. OSError.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    contexts = [line.split() for line in lines] if any(lines) else []
    for number, words in enumerate(contexts, 1):
        if len(words) < 2:
            raise ValueError(f"{path}:{number}: expected a context and the word after it")
    if not contexts:
        raise ValueError(f"{path}: no contexts")
    return contexts


@torch.no_grad()
def continuations(
    checkpoint: Path, data: str, contexts: Sequence[Sequence[str]], top: int = 5
) -> list[Continuation]:
    """Continue each context alone, from the start of a text, by a language model of any kind.

    Args:
        contexts: words, the last of which is predicted.
        top: how many of the most probable words are named.
    Raises:
        ValueError: no language model; a word to predict that is not in the dictionary.
        FloatingPointError: NaN.
    """
    loaded = load_model(checkpoint, data)
    model, dictionary = loaded.model, loaded.dictionary
    if not isinstance(model, FairseqLanguageModel):
        raise ValueError(f"{checkpoint} is not a language model")
    head = loaded.head
    found = []
    for words in contexts:
        ids = [dictionary.index(word) for word in words]
        if ids[-1] == dictionary.unk() and words[-1] != dictionary.unk_word:
            raise ValueError(f"{words[-1]!r} is not in the dictionary: it cannot be predicted")
        source = torch.tensor([[dictionary.eos(), *ids[:-1]]])
        features = model.decoder.extract_features(source, encoder_out=None)[0][0, -1:]
        log_probs = head.log_probs(features)[0]
        if log_probs.isnan().any():
            raise FloatingPointError(f"{checkpoint}: log-probabilities are NaN; it has diverged")
        order = log_probs.argsort(descending=True, stable=True).tolist()
        best = [dictionary[c] for c in order[:top]]
        rank = order.index(ids[-1])
        found.append(Continuation(" ".join(words[:-1]), words[-1], rank, best))
    return found
