"""Say which scores mean nothing, and which text and vocabulary make perplexities comparable."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from highrank_plugins.results.perplexity import UNIGRAM

Record = dict[str, Any]
# kind of score → its names, its least and its greatest value
_KINDS = {
    "perplexity": (re.compile(r"perplexity|(?<![a-z])ppl(?![a-z])"), 1.0, math.inf),
    "bits": (re.compile("bits"), 0.0, math.inf),
    "bleu": (re.compile("bleu(?!rt)"), 0.0, 100.0),
    "chrf": (re.compile("chrf"), 0.0, 100.0),
    "kld": (re.compile("_kld$"), -math.inf, math.inf),
    "": (re.compile(""), -math.inf, math.inf),
}
_EVALUATED = re.compile("(valid|test)_|ppl|perplexity")  # as the unigram's, unlike in training
LEAST_BLEU = 5.0
LEAST_KLD = 0.01


def _kind(metric: str) -> str:
    return next(kind for kind, (names, *_) in _KINDS.items() if names.search(metric.lower()))


def impossible(metric: str, value: float) -> str:
    """Return why a finite score cannot be right, "" if it can."""
    low, high = _KINDS[_kind(metric)][1:]
    wrong = math.isfinite(value) and not low - 1e-6 <= value <= high + 1e-6  # leaves rounding
    return f"{metric} is {value:g}, but must lie in [{low:g}, {high:g}]" if wrong else ""


def below_floor(record: Record) -> Iterator[str]:
    """Yield why the model of a record has learnt too little for its scores to be compared."""
    unigram = max(record["metrics"].get(UNIGRAM, math.inf), 1.0)
    counting = {"perplexity": unigram, "bits": math.log2(unigram)}
    for name, value in record["metrics"].items():
        kind, floor = _kind(name), counting.get(_kind(name), math.inf)
        if kind == "bits" and record["metrics"].get(name.replace(kind, "perplexity"), 0) >= unigram:
            continue  # its perplexity says the same
        if name != UNIGRAM and _EVALUATED.match(name) and value >= floor < math.inf:
            yield f"{name} is no better than that of counting words, the unigram's {floor:g}"
        elif kind == "kld" and value < LEAST_KLD:
            yield f"{name} is below {LEAST_KLD}; that of equal predictions everywhere is 0"
        elif kind == "bleu" and not name.endswith(("precision", "recall")) and value < LEAST_BLEU:
            yield f"{name} is below {LEAST_BLEU:g}"


def with_unigrams(systems: Mapping[str, Sequence[Record]]) -> list[tuple[str, Record]]:
    """Return system and record; a record without a unigram has that of another of its text."""
    every = [(name, record) for name, records in systems.items() for record in records]
    having = [record for _, record in every if UNIGRAM in record["metrics"]]
    known = {_text(record): {UNIGRAM: record["metrics"][UNIGRAM]} for record in having}
    return [(name, r | {"metrics": known.get(_text(r), {}) | r["metrics"]}) for name, r in every]


def systems_below_floor(systems: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """Return why a model of a system is `below_floor`, by system."""
    return {name: why for name, one in with_unigrams(systems) for why in below_floor(one)}


def _text(record: Record) -> str:
    """Return what tells the test text and vocabulary of a record; one that is silent is alone."""
    found = re.match(r"tokens:\d+", record.get("signatures", {}).get("test_perplexity", ""))
    return f"{found[0]} {vocabulary(record) | {'words': ''}}" if found else str(id(record))


def require_comparable(metric: str, runs: Sequence[tuple[Path, Record]]) -> None:
    """Refuse scores that were computed differently, and perplexities over other words."""
    first: dict[str, tuple[Path, str]] = {}
    for path, record in runs:
        said = vocabulary(record) if is_perplexity(metric) else {}
        said["signature"] = record.get("signatures", {}).get(metric) or ""
        for what in filter(said.get, said if metric in record["metrics"] else ()):
            there, other = first.setdefault(what, (path, said[what]))
            if other != (value := said[what]):
                raise ValueError(
                    f"{path}: {metric} has the {what} {value}, but {there} has {other}: they "
                    "cannot be compared; leave one out"
                )


def doubts(record: Record) -> list[str]:
    """Return `below_floor`, and whether the validation loss was best at the last epoch."""
    train = (record.get("finetune") or record).get("train", {})
    loss, epochs = train.get("valid_loss"), train.get("epochs")
    still = loss is not None and loss == train.get("best_valid_loss") and (epochs or 0) > 1
    more = ["the validation loss was still improving at the last epoch"] if still else []
    return [*below_floor(record), *more]


def is_perplexity(metric: str) -> bool:
    """Whether a metric depends on the words among which a model chooses."""
    return _kind(metric) in ("perplexity", "bits")


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
