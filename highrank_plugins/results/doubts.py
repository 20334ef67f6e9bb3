"""Say which scores mean nothing, which compare, and how the records of a table differ."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from highrank_plugins.common.provenance import machine_kind
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
_TEXT = re.compile(r"unit:[^|]*|text:[^|]*|n:\d+")  # of certificates; neither mass nor version
_BEST = "best_valid_loss"
UNKNOWN_MASS = "mass not recorded"
LEAST_BLEU = 5.0
LEAST_KLD = 0.01
TEXT_BLOCKS = ("corpus", "data", "clean")
# how long a system is trained, on which batches; and how it is scored
STEPS = r"(train|finetune)\.(max_epoch|max_update|batch_size|max_tokens|update_freq|bptt)"
SCORING = r"(evaluate|generate|average)\..*"


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
            yield f"{name} is not below that of a unigram model, {floor:g}"
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


def untrained(systems: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return the systems of which a run was best before its first update: it learnt nothing."""

    def start(record: Record) -> bool:
        return None is not record["train"].get("start_valid_loss") == record["train"].get(_BEST)

    return [name for name, records in systems.items() if any(map(start, records))]


def _text(record: Record) -> str:
    """Return what tells the test text and vocabulary of a record; one that is silent is alone."""
    found = re.match(r"tokens:\d+", record.get("signatures", {}).get("test_perplexity", ""))
    return f"{found[0]} {vocabulary(record) | {'words': ''}}" if found else str(id(record))


def _signature(record: Record, metric: str) -> str:
    """Return a metric's signature; an old record has one, that of its first metric."""
    if "signatures" in record or next(iter(record["metrics"])) != metric:
        return record.get("signatures", {}).get(metric) or ""
    return record.get("signature") or ""


def require_comparable(metric: str, runs: Sequence[tuple[Path, Record]]) -> None:
    """Refuse scores computed differently or unsigned, over other words, or of a mass not 1."""
    first: dict[str, tuple[Path, str]] = {}
    for path, record in runs:
        _require_mass(path, record)
        said = vocabulary(record) if is_perplexity(metric) else {}
        said["signature"] = _signature(record, metric)
        said["text"] = "|".join(_TEXT.findall(record.get("certificates", {}).get(metric, "")))
        for what in filter(said.get, said if metric in record["metrics"] else ()):
            there, other = first.setdefault(what, (path, said[what]))
            if other != (value := said[what]):
                raise ValueError(
                    f"{path}: {metric} has the {what} {value}, but {there} has {other}: they "
                    "cannot be compared; leave one out"
                )

    signed = {path: _signature(one, metric) for path, one in runs if metric in one["metrics"]}
    without = [path for path, signature in signed.items() if not signature]
    if without and any(signed.values()) and is_perplexity(metric):
        raise ValueError(
            f"{without[0]}: no signature of {metric}, which other records have: nobody knows if "
            "they compare; evaluate it again, or leave it out"
        )


def _require_mass(path: Path, record: Record) -> None:
    train = record.get("config", {}).get("train", {})
    words = max(map(int, vocabulary(record).get("words", "0").split(", ")))
    # `common.certificate.mass_bound`, ten times, since it grows for very improbable words
    bound = 10 * ((1e-3 if train.get("fp16") or train.get("bf16") else 1e-5) + words * 2.0**-28)
    for name, said in record.get("certificates", {}).items():
        found = re.search(r"\|mass:([^|]*)", said)
        gap = re.fullmatch(r"1([+-]\d+(?:\.\d+)?e[+-]?\d+)", found[1]) if found else None
        if not (gap and abs(float(gap[1])) <= bound):
            said = found[1] if found else "unknown"
            raise ValueError(
                f"{path}: Σ P(x) of {name} is {said}, not 1 within {bound:g}: it is no "
                "perplexity; leave it out"
            )


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
    return _kind(metric) in ("perplexity", "bits") and metric not in (WORD, BYTE)


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


def provenance_notes(systems: Mapping[str, Sequence[Record]], metric: str) -> list[str]:
    """Return a sentence for each difference of code, text, scoring, settings and machine."""

    def git(record: Record, what: str) -> Any:
        return (record.get("git") or {}).get(what) or ""

    def torch(record: Record) -> str:
        return str(record.get("versions", {}).get("torch", ""))

    difference = partial(_difference, systems=systems)
    modified = [name for name, of in systems.items() if any(git(one, "modified") for one in of)]
    processor = "Systems were not run on one kind of processor, where one seed gives other numbers"
    notes = [
        difference("Revisions of the code differ", value=lambda one: str(git(one, "revision"))[:9]),
        f"Files differed from the revision: {', '.join(modified)}." if modified else "",
        texts(systems),
        difference("Versions of torch differ", value=torch),
        difference("Machines differ, so speeds do not compare", value=_machine),
        difference(processor, value=lambda one: machine_kind(one.get("hardware", {}))),
        *incomparable(systems),
        *_settings(systems),
        *ways_of_scoring(systems, metric),
    ]
    return list(filter(None, notes))


def incomparable(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Yield why perplexities and other scores of one table cannot be compared."""
    every = [record for records in systems.values() for record in records]
    said = [vocabulary(one) for one in every if any(map(is_perplexity, one["metrics"]))]
    for source in dict.fromkeys(source for one in said for source in one):
        if len({one[source] for one in said if source in one}) > 1:
            what = f"Vocabularies differ, so perplexities do not compare ({source})"
            value = partial(lambda of, one: vocabulary(one).get(of, ""), source)
            yield _difference(what, systems, value)
    found: dict[str, set[str]] = {}
    for record in every:
        for metric in record["metrics"]:
            found.setdefault(metric, set()).add(_signature(record, metric) or "unknown")
    for metric, different in found.items():
        if len(different) > 1:
            yield f"Signatures of {metric} differ: {'; '.join(sorted(different))}."


def doubt_notes(systems: Mapping[str, Sequence[Record]], metric: str = "") -> Iterator[str]:
    """Yield each doubt with its systems; a tested perplexity without a unigram is one, too."""
    found: dict[str, dict[str, None]] = {}
    every = with_unigrams(systems)
    for name, record in every:
        for doubt in doubts(record):
            found.setdefault(doubt, {})[name] = None
    yield from (f"Doubtful, since {doubt}: {', '.join(of)}." for doubt, of in found.items())
    lack = dict.fromkeys(name for name, record in every if UNIGRAM not in record["metrics"])
    if is_perplexity(metric) and lack:
        by = "" if len(lack) == len(systems) else f" of {', '.join(lack)}"
        yield f"No record{by} says whether its model is better than a unigram model."


def _difference(
    what: str,
    systems: Mapping[str, Sequence[Record]],
    value: Callable[[Record], str],
    short: bool = False,
) -> str:
    """Return which systems have which value; empty if all records have the same."""
    having: dict[str, list[str]] = {}
    for name, records in systems.items():
        for record in records:
            names = having.setdefault(value(record), [])
            names += [] if name in names else [name]
    if len(having) < 2:
        return ""
    groups = dict.fromkeys(
        ", ".join(names) if short else f"{found or 'unknown'} ({', '.join(names)})"
        for found, names in having.items()
    )
    return f"{what}: {'; '.join(groups)}."


def _machine(record: Record) -> str:
    hardware = record.get("hardware", {})
    gpus = " + ".join(hardware.get("gpus", []))
    return f"{hardware.get('cores', '?')} × {gpus or hardware.get('processor', 'unknown')}"


def texts(systems: Mapping[str, Sequence[Record]]) -> str:
    """Return which systems have which text; older records lack the digest of theirs."""
    what = "Texts or their preparation differ"
    digests = {record.get("data") for records in systems.values() for record in records}
    if None in digests and len(digests) == 2 and not _difference(what, systems, _preparation):
        what = "Texts may differ, since some records have no digest of theirs"
    return _difference(
        what, systems, lambda record: f"{_preparation(record)} {record.get('data')}", short=True
    )


def masses(systems: Mapping[str, Sequence[Record]], metric: str) -> str:
    """Return how far Σ P(x) is from 1, and which systems do not state it; empty if none does."""
    stated = {name: [r.get("certificates", {}) for r in of] for name, of in systems.items()}
    gaps = re.findall(r"\|mass:1([^|]+)", str(stated))
    tested = is_perplexity(metric)
    silent = [n for n, of in stated.items() if not all(x.get(metric) if tested else x for x in of)]
    rest = f" ({UNKNOWN_MASS}: {', '.join(silent)})" if silent else ""
    worst = max(map(abs, map(float, gaps)), default=0.0)
    return f"Σ P(x) is 1 within {worst:.0e} at 64 positions of each text{rest}." if gaps else ""


def ways_of_scoring(systems: Mapping[str, Sequence[Record]], metric: str) -> Iterator[str]:
    """Yield how the certificates of a perplexity differ in context, words or version."""
    for part, what in (
        ("ctx", "context of each word"), ("eos", "ends of lines"), ("unk", "unknown words"),
        ("v", "version of this package"),
    ):  # fmt: skip

        def stated(record: Record, part: str = part) -> str:
            said = record.get("certificates", {}).get(metric, "")
            return "".join(re.findall(rf"\|{part}:([^|]*)", said))

        if len({stated(one) for of in systems.values() for one in of} - {""}) > 1:
            yield _difference(f"Signatures differ in {part}, the {what}", systems, stated)


def _preparation(record: Record) -> str:
    config = record.get("config", {})
    return json.dumps({name: config.get(name) or None for name in TEXT_BLOCKS}, sort_keys=True)


def _settings(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Yield what makes systems differ before any layer does, and runs that are not one system."""
    keys = {key for runs in systems.values() for run in runs for key in flat_settings(run)}
    for key in sorted(filter(re.compile(f"{STEPS}|{SCORING}").fullmatch, keys)):
        value = partial(lambda of, one: str(flat_settings(one).get(of, "unset")), key)
        yield _difference(f"{key} differs", systems, value)
    for name, records in systems.items():
        settings = [flat_settings(record) for record in records]
        keys = {key for one in settings for key in one if key != "train.seed"}
        differing = sorted(key for key in keys if len({repr(one.get(key)) for one in settings}) > 1)
        if differing:
            yield f"Runs of {name} differ in {', '.join(differing)}."


def flat_settings(record: Record) -> dict[str, object]:
    """Return the configuration of a record as block.option → value."""
    return {
        f"{block}.{option}": value
        for block, options in record.get("config", {}).items()
        if isinstance(options, Mapping)
        for option, value in options.items()
    }
