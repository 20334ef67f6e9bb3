"""Say which scores of a record mean nothing, and among which words its models choose."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from highrank_plugins.results.perplexity import BYTE, UNIGRAM, WORD

Record = dict[str, Any]
# kind of score → its names, its least and its greatest value
_KINDS = {
    "perplexity": (re.compile(r"perplexity|(?<![a-z])ppl(?![a-z])"), 1.0, math.inf),
    "bits": (re.compile("bits"), 0.0, math.inf),
    "bleu": (re.compile("bleu(?!rt)"), 0.0, 100.0),
    "chrf": (re.compile("chrf"), 0.0, 100.0),
    "kld": (re.compile("_kld$"), -math.inf, math.inf),
    "percent": (re.compile(r"(?<![a-z])top_?\d+$"), 0.0, 100.0),
    "count": (re.compile(r"entropy|_rank|_nats$"), 0.0, math.inf),
    "share": (re.compile("retention$"), 0.0, 1.0),
    "correlation": (re.compile("^word_similarity$"), -1.0, 1.0),
    "": (re.compile(""), -math.inf, math.inf),
}
_EVALUATED = re.compile("(valid|test)_|ppl|perplexity")  # as the unigram's, unlike in training
LEAST_BLEU = 5.0
LEAST_KLD = 0.01
TEXT_BLOCKS = ("corpus", "data", "clean")
# how long a system is trained, on which batches; and how it is scored
STEPS = r"(train|finetune)\.(max_epoch|max_update|batch_size|max_tokens|update_freq|bptt)"
SCORING = r"(evaluate|generate|average)\..*"


def kind_of(metric: str) -> str:
    """Return the kind of a score, "" if its name does not tell it."""
    return next(kind for kind, (names, *_) in _KINDS.items() if names.search(metric.lower()))


def to_nats(metric: str) -> Callable[[float], float] | None:
    """Return what makes nats of a perplexity or of bits; None for another score."""
    return {"perplexity": math.log, "bits": lambda bits: bits * math.log(2)}.get(kind_of(metric))


def impossible(metric: str, value: float) -> str:
    """Return why a finite score cannot be right, "" if it can."""
    low, high = _KINDS[kind_of(metric)][1:]
    wrong = math.isfinite(value) and not low - 1e-6 <= value <= high + 1e-6  # leaves rounding
    return f"{metric} is {value:g}, but must lie in [{low:g}, {high:g}]" if wrong else ""


def below_floor(record: Record) -> Iterator[str]:
    """Yield why the model of a record has learnt too little for its scores to be compared."""
    unigram = max(record["metrics"].get(UNIGRAM, math.inf), 1.0)
    counting = {"perplexity": unigram, "bits": math.log2(unigram)}
    for name, value in record["metrics"].items():
        kind, floor = kind_of(name), counting.get(kind_of(name), math.inf)
        if kind == "bits" and record["metrics"].get(name.replace(kind, "perplexity"), 0) >= unigram:
            continue  # its perplexity says the same
        if name != UNIGRAM and _EVALUATED.match(name) and value >= floor < math.inf:
            yield f"{name} is not below that of a unigram model, {floor:g}"
        elif kind == "kld" and value < LEAST_KLD:
            yield f"{name} is below {LEAST_KLD}; that of equal predictions everywhere is 0"
        elif kind == "bleu" and not name.endswith(("precision", "recall")) and value < LEAST_BLEU:
            yield f"{name} is below {LEAST_BLEU:g}"


def doubts(record: Record) -> list[str]:
    """Return `below_floor`, and which validation scores were best at the last epoch."""
    train = (record.get("finetune") or record).get("train", {})
    improving = (
        f"the validation {name.removeprefix('best_valid_')} was still improving at the last epoch"
        for name, best in train.items()
        if name.startswith("best_valid_") and None is not best == train.get(name[5:])
    )
    return [*below_floor(record), *(improving if (train.get("epochs") or 0) > 1 else ())]


def is_perplexity(metric: str) -> bool:
    """Whether a metric depends on the words among which a model chooses."""
    return kind_of(metric) in ("perplexity", "bits") and metric not in (WORD, BYTE)


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


def signature_of(record: Record, metric: str) -> str:
    """Return a metric's signature; empty if the record has none of it."""
    return record.get("signatures", {}).get(metric) or ""


def flat_settings(record: Record) -> dict[str, object]:
    """Return the configuration of a record as block.option → value."""
    return {
        f"{block}.{option}": value
        for block, options in record.get("config", {}).items()
        if isinstance(options, Mapping)
        for option, value in options.items()
    }
