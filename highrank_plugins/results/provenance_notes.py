"""Describe differences between the records of one table, other than the systems."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from highrank_plugins.common.provenance import machine_kind
from highrank_plugins.results.doubts import Record, doubts, is_perplexity, vocabulary, with_unigrams
from highrank_plugins.results.perplexity import UNIGRAM

TEXT_BLOCKS = ("corpus", "data", "clean", "dialogues")
# how long a system is trained, on which batches; and how it is scored
STEPS = r"(train|finetune)\.(max_epoch|max_update|batch_size|max_tokens|update_freq|bptt)"
SCORING = r"(evaluate|generate|average)\..*"


def provenance_notes(systems: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return a sentence for each difference of revision, text, signature, torch and machine.

    Args:
        systems: name → records of its runs.
    """
    notes = [
        _difference("Revisions of the code differ", systems, _revision),
        _changed_files(systems),
        texts(systems),
        _difference("Versions of torch differ", systems, _torch),
        _difference("Machines differ, so speeds do not compare", systems, _machine),
        _difference(
            "Systems were not run on one kind of processor, where one seed gives other numbers",
            systems,
            lambda record: machine_kind(record.get("hardware", {})),
        ),
        *incomparable(systems),
        *_lengths_and_scoring(systems),
        *_settings(systems),
    ]
    return [note for note in notes if note]


def incomparable(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Yield why perplexities and other scores of one table cannot be compared."""
    every = [record for records in systems.values() for record in records]
    said = [vocabulary(one) for one in every if any(map(is_perplexity, one["metrics"]))]
    for source in dict.fromkeys(source for one in said for source in one):
        if len({one[source] for one in said if source in one}) > 1:
            what = f"Vocabularies differ, so perplexities do not compare ({source})"
            yield _difference(what, systems, partial(_vocabulary, source))
    yield from _signatures(systems)


def _vocabulary(source: str, record: Record) -> str:
    return vocabulary(record).get(source, "")


def doubt_notes(systems: Mapping[str, Sequence[Record]], metric: str = "") -> Iterator[str]:
    """Yield each doubt about a score with the systems that it concerns.

    Args:
        metric: what a table tests; a perplexity without that of counting words is a doubt, too.
    """
    found: dict[str, dict[str, None]] = {}
    every = with_unigrams(systems)
    for name, record in every:
        for doubt in doubts(record):
            found.setdefault(doubt, {})[name] = None
    yield from (f"Doubtful, since {doubt}: {', '.join(of)}." for doubt, of in found.items())
    lack = dict.fromkeys(name for name, record in every if UNIGRAM not in record["metrics"])
    if is_perplexity(metric) and lack:
        by = "" if len(lack) == len(systems) else f" of {', '.join(lack)}"
        yield f"No record{by} says whether its model does better than counting words (the unigram)."


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


def _revision(record: Record) -> str:
    return str((record.get("git") or {}).get("revision") or "")[:9]


def _torch(record: Record) -> str:
    return str(record.get("versions", {}).get("torch", ""))


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


def _preparation(record: Record) -> str:
    config = record.get("config", {})
    return json.dumps({name: config.get(name) or None for name in TEXT_BLOCKS}, sort_keys=True)


def _changed_files(systems: Mapping[str, Sequence[Record]]) -> str:
    names = [
        name
        for name, records in systems.items()
        if any((record.get("git") or {}).get("modified") for record in records)
    ]
    return f"Files differed from the revision: {', '.join(names)}." if names else ""


def _signatures(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    found: dict[str, set[str]] = {}
    for record in (record for records in systems.values() for record in records):
        signatures = record.get("signatures", {})
        for metric in record["metrics"]:
            found.setdefault(metric, set()).add(signatures.get(metric) or "unknown")
    for metric, different in found.items():
        if len(different) > 1:
            yield f"Signatures of {metric} differ: {'; '.join(sorted(different))}."


def _lengths_and_scoring(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Yield the options that make systems differ before any layer does."""
    keys = {key for runs in systems.values() for run in runs for key in flat_settings(run)}
    for key in sorted(filter(re.compile(f"{STEPS}|{SCORING}").fullmatch, keys)):
        yield _difference(f"{key} differs", systems, partial(_option, key))


def _option(key: str, record: Record) -> str:
    return str(flat_settings(record).get(key, "unset"))


def _settings(systems: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Yield systems whose runs differ in more than the seed: they are not one system."""
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
