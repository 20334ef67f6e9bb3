"""Say which scores mean nothing, and which text and vocabulary make perplexities comparable."""

import math
import re
from collections.abc import Iterator
from typing import Any

from highrank_plugins.results.perplexity import UNIGRAM

Record = dict[str, Any]
_BLEU = ("sacrebleu", "bleu_tokenised", "bleu_compound_split")
LEAST_BLEU = 5.0
LEAST_KLD = 0.01


def below_floor(record: Record) -> Iterator[str]:
    """Yield why the model of a record has learnt too little for its scores to be compared."""
    unigram = record["metrics"].get(UNIGRAM, math.inf)
    for name, value in record["metrics"].items():
        if name.startswith("test_") and "perplexity" in name and value >= unigram != value:
            yield f"{name} is no better than that of counting words, the unigram's {unigram:g}"
        elif name.endswith("_kld") and value < LEAST_KLD:
            yield f"{name} is below {LEAST_KLD}; that of equal predictions everywhere is 0"
        elif name in _BLEU and value < LEAST_BLEU:
            yield f"{name} is below {LEAST_BLEU:g}"


def doubts(record: Record) -> list[str]:
    """Return `below_floor`, and whether the validation loss was best at the last epoch."""
    train = (record.get("finetune") or record).get("train", {})
    loss, epochs = train.get("valid_loss"), train.get("epochs")
    still = loss is not None and loss == train.get("best_valid_loss") and (epochs or 0) > 1
    more = ["the validation loss was still improving at the last epoch"] if still else []
    return [*below_floor(record), *more]


def is_perplexity(metric: str) -> bool:
    """Whether a metric depends on the words among which a model chooses."""
    return "perplexity" in metric or "bits" in metric


def vocabulary(record: Record) -> dict[str, str]:
    """Return what a record says about its vocabulary, by source; an old one says little."""
    words = re.findall(r"\bwords:(\d+)", " ".join(record.get("signatures", {}).values()))
    blocks = {name: block or {} for name, block in record.get("config", {}).items()}
    said = {
        "checksum of its dictionary": record.get("vocabulary"),
        "words": ", ".join(sorted({*words})),
        "corpus.vocab_size": blocks.get("corpus", {}).get("vocab_size"),
        "data.vocab_size": blocks.get("data", {}).get("vocab_size"),
    }
    return {source: str(value) for source, value in said.items() if value}
