"""Compare systems by the records of their runs: means, tests, effects, costs, differences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from highrank_plugins.analysis.statistics import Summary, paired_bleu, summarise
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.doubts import require_comparable, systems_below_floor
from highrank_plugins.results.provenance_notes import doubt_notes, provenance_notes
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.results_table import Record, metrics_of, read_records
from highrank_plugins.results.scoring import read_lines
from highrank_plugins.results.systems import Comparison, System, compare

BASELINE = "softmax"
BLEU = "sacrebleu"
_PREFERRED = (BLEU, "test_perplexity")  # metrics that a table tests by default


@dataclass(frozen=True)
class RecordedRun:
    """Hold a record and its file."""

    path: Path
    record: Record

    @property
    def seed(self) -> int:
        """Return the seed, or 1, which is fairseq's default."""
        return int((self.record.get("seeds") or [1])[0])

    def cost(self, name: str) -> float | None:
        """Return a number of the training run, None where the record lacks it."""
        value = self.record["train"].get(name)
        return None if value is None else float(value)


@dataclass(frozen=True)
class ComparedSystem:
    """Hold a system of a table: its runs and tests.

    Attributes:
        comparison: against the baseline; None for the baseline, and with too few runs.
        paired: p-values of a paired bootstrap of the translations, by seed.
    """

    name: str
    runs: Sequence[RecordedRun]
    comparison: Comparison | None
    paired: Mapping[int, float]

    def values(self, metric: str) -> list[float]:
        """Return the values of the runs that have this metric."""
        found = (run.record["metrics"].get(metric) for run in self.runs)
        return [float(value) for value in found if value is not None]

    def summary(self, metric: str) -> Summary | float | None:
        """Return mean, deviation (n − 1) and number of runs; one run's value; None without runs."""
        values = self.values(metric)
        if len(values) < 2:
            return values[0] if values else None
        return summarise(values)

    def cost(self, name: str) -> float | None:
        """Return the mean over the runs that have it."""
        found = [value for run in self.runs if (value := run.cost(name)) is not None]
        return mean(found) if found else None


@dataclass(frozen=True)
class Compared:
    """Hold systems, the metrics to show, and notes on the records.

    Attributes:
        metrics: all shown ones; the first is tested.
        baseline: None if no system has that name.
        test: "student" or "welch".
        notes: a sentence each, such as on records of another revision.
        causes: what else notes name as a cause: "a difference" of the runs, or "a doubt".
    """

    systems: Sequence[ComparedSystem]
    metrics: Sequence[str]
    baseline: str | None
    test: str
    alpha: float
    notes: Sequence[str]
    causes: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """Return the metric that is tested."""
        return self.metrics[0]


def compare_records(
    paths: Sequence[Path],
    metric: str | None = None,
    baseline: str | None = None,
    test: str = "student",
    alpha: float = 0.05,
    columns: Sequence[str] | None = None,
    untested: Mapping[str, str] | None = None,
) -> Compared:
    """Compare systems with a baseline; records are named after their systems.

    Args:
        paths: named `SYSTEM-SEED.json`, `SYSTEM-SEED/results.json` or `SYSTEM/results.json`.
        metric: default: sacreBLEU, or else the test perplexity.
        baseline: default: softmax, if there is one.
        test: "student" or "welch".
        columns: further metrics to show; default: all that are known.
        untested: system → why it has no test. Models below the floor have none, either.
    """
    paths = list(paths)
    records = read_records(paths)
    systems: dict[str, list[RecordedRun]] = {}
    for path, record in zip(paths, records, strict=True):
        systems.setdefault(system_of(path, paths), []).append(RecordedRun(path, record))
    _check_seeds(systems)
    tested = _default_metric(records) if metric is None else metric
    shown = [tested]
    for name in metrics_of(records) if columns is None else columns:
        shown += [] if name in shown else [name]
    for name in shown:
        _check_metric(name, records)
    require_comparable(tested, list(zip(paths, records, strict=True)))
    control = _baseline(baseline, systems)
    of_systems = {name: [run.record for run in of] for name, of in systems.items()}
    differences = provenance_notes(of_systems)
    floor = dict.fromkeys(systems_below_floor(of_systems), "a model is below the floor")
    compared, notes = _compare(systems, tested, control, test, alpha, {**floor, **(untested or {})})
    doubtful = [*_alike(compared, tested), *doubt_notes(of_systems, tested)]
    notes += [*doubtful, *differences]
    causes = [f"a {of}" for of, why in (("difference", differences), ("doubt", doubtful)) if why]
    return Compared(compared, shown, control, test, alpha, notes, causes)


def system_of(path: Path, paths: Sequence[Path]) -> str:
    """Return the system that a record's file or folder is named after."""
    folder = path.absolute().parent.name
    name = folder if path.name == RESULTS else path.stem
    match = re.fullmatch(r"(.+)-\d+", name)
    if path.name == RESULTS:
        return match[1] if match else folder
    if not match:
        raise ValueError(f"{path}: expected a file named SYSTEM-SEED.json or {RESULTS}; rename it")
    if [other.stem for other in paths].count(path.stem) > 1:
        raise ValueError(f"{path}: another file is also called {match[0]}; each seed counts once")
    return match[1]


def _default_metric(records: list[Record]) -> str:
    known = metrics_of(records) or list(records[0]["metrics"])  # a recipe may have its own
    return next((name for name in _PREFERRED if name in known), known[0])


def _check_metric(name: str, records: list[Record]) -> None:
    there = dict.fromkeys(metric for record in records for metric in record["metrics"])
    if name not in there:
        raise ValueError(
            f"no record has the metric {name!r}{did_you_mean(name, there)}; there are: "
            f"{', '.join(there)}"
        )


def _check_seeds(systems: Mapping[str, Sequence[RecordedRun]]) -> None:
    """Refuse two runs of a system with one seed; a record may lack it."""
    for name, runs in systems.items():
        first: dict[int, Path] = {}
        for run in filter(lambda run: run.record.get("seeds"), runs):
            if first.setdefault(run.seed, run.path) != run.path:
                raise ValueError(
                    f"{run.path} and {first[run.seed]} are runs of {name} with seed {run.seed}; "
                    "each seed counts once: leave one out, or name one after another system"
                )


def _baseline(name: str | None, systems: Mapping[str, object]) -> str | None:
    if name is not None and name not in systems:
        raise ValueError(
            f"--baseline {name}: the systems are {', '.join(systems)}{did_you_mean(name, systems)}"
        )
    return name or (BASELINE if BASELINE in systems else None)


def _compare(
    systems: Mapping[str, Sequence[RecordedRun]],
    metric: str,
    control: str | None,
    test: str,
    alpha: float,
    untested: Mapping[str, str],
) -> tuple[list[ComparedSystem], list[str]]:
    """Return the systems with their tests, and why some of them have none."""
    plain = {name: ComparedSystem(name, runs, None, {}) for name, runs in systems.items()}
    if control is None:
        note = (
            f"Nothing is tested, since no system is named {BASELINE}. Choose the baseline with "
            f"--baseline: {', '.join(systems)}."
        )
        return list(plain.values()), [note]
    baseline = plain[control].values(metric)
    few = f"a test needs two seeds of a system and of {control}"
    equal = "neither runs nor baseline vary"
    known = [untested[name] for name in plain if name in untested]
    reasons: dict[str, list[str]] = {why: [] for why in [*known, few, equal]}
    tested = {}
    for name, system in plain.items():
        values = system.values(metric)
        if name in untested:
            reasons[untested[name]].append(name)
        elif name == control or control in untested:
            continue
        elif len(values) < 2 or len(baseline) < 2:
            reasons[few].append(name)
        elif len({*values}) == len({*baseline}) == 1:
            reasons[equal].append(name)
        else:
            tested[name] = System(name, values)
    notes = [f"Not tested, since {why}: {', '.join(of)}." for why, of in reasons.items() if of]
    if control in untested:
        notes.append(f"Nothing is tested, since {control} is the baseline.")
    compared = compare([System(control, baseline), *tested.values()], test) if tested else []
    found = {comparison.system: comparison for comparison in compared}
    unpaired = {*plain} if metric != BLEU or control in untested else {control, *untested}
    return [
        replace(
            system,
            comparison=found.get(name),
            paired={} if name in unpaired else _paired(system.runs, systems[control]),
        )
        for name, system in plain.items()
    ], notes


def _alike(systems: Sequence[ComparedSystem], metric: str) -> Iterator[str]:
    """Yield which systems have one score with all of their seeds."""
    alike = [one.name for one in systems if len(one.runs) > len({*one.values(metric)}) == 1]
    if alike:
        yield f"All seeds have one score: {', '.join(alike)}. Check that their training differs."


def _paired(runs: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> dict[int, float]:
    """Return by seed the p-value of sacreBLEU's paired bootstrap, where translations are kept."""
    theirs = {run.seed: texts for run in baseline if (texts := _texts(run)) is not None}
    found = {}
    for run in runs:
        own, other = _texts(run), theirs.get(run.seed)
        if own is None or other is None or own[1] != other[1]:
            continue
        scores = paired_bleu({"baseline": other[0], "system": own[0]}, [own[1]]).scores
        found[run.seed] = float(scores[1].p_value or 0.0)
    return found


def _texts(run: RecordedRun) -> tuple[list[str], list[str]] | None:
    """Return translations and references of the test set in the folder of a recipe's run."""
    language = run.record.get("config", {}).get("train", {}).get("target_lang")
    folder = run.path.parent
    files = [folder / part / f"test.{language}" for part in ("score", "text")]
    if run.path.name != RESULTS or not all(file.is_file() for file in files):
        return None
    hypotheses, references = map(read_lines, files)
    return (hypotheses, references) if len(hypotheses) == len(references) else None
