"""Read the records of a table or a plot, refuse what does not compare, say how others differ."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highrank_plugins.common.names import did_you_mean, distinct_names
from highrank_plugins.common.provenance import machine_kind
from highrank_plugins.results.doubts import (
    SCORING,
    STEPS,
    TEXT_BLOCKS,
    Record,
    below_floor,
    doubts,
    flat_settings,
    is_perplexity,
    signature_of,
    vocabulary,
)
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.perplexity import UNIGRAM
from highrank_plugins.results.record import RESULTS, load_record

UNKNOWN_MASS = "mass not recorded"
_MASS = re.compile(r"\|mass:1([+-]\d+(?:\.\d+)?e[+-]?\d+)")
_LABELS = {"seeds": None, "config": None, "command": None}  # what a copy may call itself
_TEXT = re.compile(r"unit:[^|]*|text:[^|]*|n:\d+")  # of certificates; neither mass nor version


@dataclass(frozen=True)
class RecordedRun:
    """Hold a record, and the system after which its file or folder is named."""

    path: Path
    record: Record
    system: str

    @property
    def seed(self) -> int:
        """Return the seed, or 1, which is fairseq's default."""
        return int((self.record.get("seeds") or [1])[0])

    def cost(self, name: str) -> float | None:
        value = self.record["train"].get(name)
        return None if value is None else float(value)

    def number(self, name: str) -> float | None:
        """Return a metric, a number of the training run, or an option of it."""
        options = self.record.get("config", {}).get("train") or {}
        found = (of.get(name) for of in (self.record["metrics"], self.record["train"], options))
        return next((float(value) for value in found if isinstance(value, int | float)), None)


def run_name(path: Path) -> str:
    """Return SYSTEM-SEED, the name of a record's file, or of its folder."""
    return path.absolute().parent.name if path.name == RESULTS else path.stem


def read_runs(
    paths: Sequence[Path],
    names: Sequence[str] | None = None,
    same: Sequence[str] = ("config", "seeds"),
) -> list[RecordedRun]:
    """Return different runs, those of a system together: no two agree in all keys of `same`.

    Systems are those of files SYSTEM-SEED.json or folders, or have `names`.
    """
    systems: dict[str, list[RecordedRun]] = {}
    known: dict[Any, Path] = {}  # what only one run may have
    for path, name in zip(paths, names or map(system_of, paths), strict=True):
        run = RecordedRun(path, load_record(path), name)
        for identity in _identities(run, same):
            if identity in known:
                raise ValueError(
                    f"{path} and {known[identity]} are one run, a copy, or one seed of {name}; "
                    "each seed counts once: leave one out, or name it after another system"
                )
            known[identity] = path
        systems.setdefault(name, []).append(run)
    return [run for own in systems.values() for run in own]


def _identities(run: RecordedRun, same: Sequence[str]) -> Iterator[Any]:
    """Yield what tells a run from others: its file, seed and settings, and all that it recorded."""
    record = run.record
    yield run.path
    if "seeds" in record:
        yield "seed", run.system, run.seed
    if "config" in record:
        yield "settings", *(_hashable(record.get(key)) for key in same)
    if "wall_seconds" in record["train"]:
        yield "copy", _hashable(record | _LABELS)


def _hashable(value: Any) -> Any:
    """Return a value of JSON so that equal ones have one hash."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(entry)) for key, entry in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def system_of(path: Path) -> str:
    match = re.fullmatch(r"(.+)-\d+", name := run_name(path))
    if not match and path.name != RESULTS:
        raise ValueError(f"{path}: expected a file named SYSTEM-SEED.json or {RESULTS}; rename it")
    return match[1] if match else name


def numbers_of(paths: Sequence[Path], *metrics: str) -> list[tuple[float, ...]]:
    """Return numbers of records; refuse those that do not compare, as `highrank compare` does."""
    runs = [RecordedRun(path, load_record(path), str(path)) for path in paths]
    for metric in metrics:
        require_comparable(metric, runs)
    for name, why in below_the_floor(runs).items():
        raise ValueError(f"{name}: {why}: the model is below the floor; leave it out")
    for run in runs:
        for metric in metrics:
            if unknown := unknown_metric(metric, run.record["metrics"]):
                raise ValueError(f"{run.path} has no {unknown}")
    return [tuple(float(run.record["metrics"][of]) for of in metrics) for run in runs]


def numbers_by_system(paths: Sequence[Path], *metrics: str) -> dict[str, list[tuple[float, ...]]]:
    """Return numbers of the runs of each configuration, by names without their seeds.

    Runs that differ in their seeds alone are of one; a record without configuration stands alone.
    """
    names, found = distinct_names(paths, RESULTS), dict[str, list[tuple[str, tuple[float, ...]]]]()
    for name, path, numbers in zip(names, paths, numbers_of(paths, *metrics), strict=True):
        settings = {n: v for n, v in flat_settings(load_record(path)).items() if n != "train.seed"}
        key = json.dumps(settings, sort_keys=True, default=str) if settings else str(path)
        found.setdefault(key, []).append((name, numbers))
    systems: dict[str, list[tuple[float, ...]]] = {}
    for runs in found.values():
        name = ", ".join(dict.fromkeys(re.sub(r"-\d+$", "", run) for run, _ in runs))
        name = ", ".join(run for run, _ in runs) if name in systems else name
        systems[name] = [at for _, at in runs]
    return systems


def unknown_metric(name: str, known: Iterable[str]) -> str:
    """Return a metric that is not known, with the near ones and all that are; "" if it is."""
    there = list(known)
    near = did_you_mean(name, there)
    return "" if name in there else f"metric {name!r}{near}; there are: {', '.join(there)}"


def metrics_of(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the metrics with a column that any of the runs has, in their order."""
    return [one.name for one in SCORES if any(one.name in run.record["metrics"] for run in runs)]


def require_comparable(metric: str, runs: Sequence[RecordedRun]) -> None:
    """Refuse scores computed differently or unsigned, or over other words."""
    having = [run for run in runs if metric in run.record["metrics"]]
    first: dict[str, tuple[Path, str]] = {}
    for run in runs:
        if run not in having and run.system in {other.system for other in having}:
            raise ValueError(
                f"{run.path}: no {metric}, which other runs of {run.system} have; evaluate it, or "
                "leave it out and say so: a seed that has no score has none by chance"
            )
    for run in having:
        said = vocabulary(run.record) if is_perplexity(metric) else {}
        said["signature"] = signature_of(run.record, metric)
        said["text"] = "|".join(_TEXT.findall(_certificate(run, metric)))
        for what in filter(said.get, said):
            there, other = first.setdefault(what, (run.path, said[what]))
            if other != (value := said[what]):
                raise ValueError(
                    f"{run.path}: {metric} has the {what} {value}, but {there} has {other}: they "
                    "cannot be compared; leave one out"
                )
    without = [run.path for run in having if not signature_of(run.record, metric)]
    if 0 < len(without) < len(having) and is_perplexity(metric):
        raise ValueError(
            f"{without[0]}: no signature of {metric}, which other records have: nobody knows if "
            "they compare; evaluate it again, or leave it out"
        )


def _certificate(run: RecordedRun, metric: str) -> str:
    return str(run.record.get("certificates", {}).get(metric, ""))


def below_the_floor(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Return why a model of a system is `below_floor`, by system."""
    return {run.system: why for run in runs for why in below_floor(run.record)}


def untrained(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the systems of which a run was best before its first update: it learnt nothing."""
    return [
        run.system
        for run in runs
        if None is not run.cost("start_valid_loss") == run.cost("best_valid_loss")
    ]


def doubt_notes(runs: Sequence[RecordedRun], metric: str = "") -> Iterator[str]:
    """Yield each doubt with its systems; a tested perplexity without a unigram is one, too."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for doubt in doubts(run.record):
            found.setdefault(doubt, {})[run.system] = None
    yield from (f"Doubtful, since {doubt}: {', '.join(of)}." for doubt, of in found.items())
    lack = dict.fromkeys(run.system for run in runs if UNIGRAM not in run.record["metrics"])
    if is_perplexity(metric) and lack:
        by = "" if lack.keys() == {run.system for run in runs} else f" of {', '.join(lack)}"
        yield f"No record{by} says whether its model is better than a unigram model."


def differences(runs: Sequence[RecordedRun], metric: str) -> list[str]:
    """Return a sentence for each difference of code, text, scoring, settings and machine."""
    hardware = [run.record["hardware"] for run in runs]
    git = [run.record.get("git") or {} for run in runs]
    modified = [run.system for run, of in zip(runs, git, strict=True) if of.get("modified")]
    processor = "Systems were not run on one kind of processor, where one seed gives other numbers"
    rows = {
        "Revisions of the code differ": [str(of.get("revision") or "")[:9] for of in git],
        "Versions of torch differ": [run.record["versions"].get("torch", "") for run in runs],
        "Machines differ, so speeds do not compare": list(map(_machine, hardware)),
        processor: list(map(machine_kind, hardware)),
    }
    revisions, *others = (_difference(what, runs, values) for what, values in rows.items())
    code = f"Files differed from the revision: {', '.join(dict.fromkeys(modified))}."
    notes = [revisions, code if modified else "", texts(runs), *others, *incomparable(runs)]
    return list(filter(None, [*notes, *_settings(runs), *ways_of_scoring(runs, metric)]))


def incomparable(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yield why perplexities and other scores of one table cannot be compared."""
    words = [vocabulary(run.record) for run in runs]
    having = [any(map(is_perplexity, run.record["metrics"])) for run in runs]
    said = [of for of, has in zip(words, having, strict=True) if has]
    for source in dict.fromkeys(source for of in said for source in of):
        if len({of[source] for of in said if source in of}) > 1:
            what = f"Vocabularies differ, so perplexities do not compare ({source})"
            yield _difference(what, runs, [of.get(source, "") for of in words])
    for metric in dict.fromkeys(metric for run in runs for metric in run.record["metrics"]):
        records = [run.record for run in runs if metric in run.record["metrics"]]
        signatures = {signature_of(record, metric) or "unknown" for record in records}
        if len(signatures) > 1:
            yield f"Signatures of {metric} differ: {'; '.join(sorted(signatures))}."


def _difference(
    what: str, runs: Sequence[RecordedRun], values: Sequence[str], short: bool = False
) -> str:
    """Return which systems have which value; empty if all records have the same."""
    having: dict[str, dict[str, None]] = {}
    for run, value in zip(runs, values, strict=True):
        having.setdefault(value, {})[run.system] = None
    if len(having) < 2:
        return ""
    groups = dict.fromkeys(
        ", ".join(names) if short else f"{found or 'unknown'} ({', '.join(names)})"
        for found, names in having.items()
    )
    return f"{what}: {'; '.join(groups)}."


def _machine(hardware: dict[str, Any]) -> str:
    gpus = " + ".join(hardware.get("gpus", []))
    return f"{hardware.get('cores', '?')} × {gpus or hardware.get('processor', 'unknown')}"


def texts(runs: Sequence[RecordedRun]) -> str:
    """Return which systems have which text; older records lack the digest of theirs."""
    what = "Texts or their preparation differ"
    configs = [run.record.get("config", {}) for run in runs]
    blocks = [{name: of.get(name) or None for name in TEXT_BLOCKS} for of in configs]
    prepared = [json.dumps(of, sort_keys=True) for of in blocks]
    digests = [run.record.get("data") for run in runs]
    if None in digests and len({*digests}) == 2 and len({*prepared}) == 1:
        what = "Texts may differ, since some records have no digest of theirs"
    said = [f"{text} {digest}" for text, digest in zip(prepared, digests, strict=True)]
    return _difference(what, runs, said, short=True)


def masses(runs: Sequence[RecordedRun], metric: str) -> str:
    """Return how far Σ P(x) is from 1, and which systems do not state it; empty if none does."""
    stated = [run.record.get("certificates", {}) for run in runs]
    gaps = _MASS.findall(str(stated))
    tested = [str(of.get(metric) if is_perplexity(metric) else of) for of in stated]
    pairs = zip(runs, map(_MASS.search, tested), strict=True)
    silent = dict.fromkeys(run.system for run, found in pairs if not found)
    rest = f" ({UNKNOWN_MASS}: {', '.join(silent)})" if silent else ""
    worst = max(map(abs, map(float, gaps)), default=0.0)
    return f"Σ P(x) is 1 within {worst:.0e} at 64 positions of each text{rest}." if gaps else ""


def ways_of_scoring(runs: Sequence[RecordedRun], metric: str) -> Iterator[str]:
    """Yield how the certificates of a perplexity differ in context, words or version."""
    for part, what in (
        ("ctx", "context of each word"), ("eos", "ends of lines"), ("unk", "unknown words"),
        ("v", "version of this package"),
    ):  # fmt: skip
        said = [re.findall(rf"\|{part}:([^|]*)", _certificate(run, metric)) for run in runs]
        values = ["".join(of) for of in said]
        if len({*values} - {""}) > 1:
            yield _difference(f"Signatures differ in {part}, the {what}", runs, values)


def _settings(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yield what makes systems differ before any layer does, and runs that are not one system."""
    settings = [flat_settings(run.record) for run in runs]
    keys = sorted({key for of in settings for key in of})
    for key in filter(re.compile(f"{STEPS}|{SCORING}").fullmatch, keys):
        values = [str(of.get(key, "unset")) for of in settings]
        yield _difference(f"{key} differs", runs, values)
    for system in dict.fromkeys(run.system for run in runs):
        own = [of for run, of in zip(runs, settings, strict=True) if run.system == system]
        differing = [key for key in keys if len({repr(of.get(key)) for of in own}) > 1]
        if differing := [key for key in differing if key != "train.seed"]:
            yield f"Runs of {system} differ in {', '.join(differing)}."
