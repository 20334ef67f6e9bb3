"""Compare systems by the records of their runs: means, tests, effects, costs, differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from highrank_plugins.analysis import statistics
from highrank_plugins.analysis.statistics import PlannedTest, Summary, summarise
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results import doubts
from highrank_plugins.results.doubts import Record, is_perplexity
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.results_table import (
    RecordedRun,
    metrics_of,
    read_records,
    require_scores,
    systems_of,
    unknown_metric,
)
from highrank_plugins.results.scoring import read_lines

BASELINE = "softmax"
BLEU = "sacrebleu"
_PREFERRED = (BLEU, "test_perplexity")  # metrics that a table tests by default
WILD = 0.05  # nats: deviation between seeds of which some hardly train
UNTRAINED = "a run was best before its first update"


class Comparison(NamedTuple):
    """Hold a test against the baseline, whose mean is subtracted; `effect` is Hedges' g."""

    p_value: float
    holm: float  # p, adjusted for all systems
    difference: float
    interval: tuple[float, float]  # 95 %
    effect: float


@dataclass(frozen=True)
class ComparedSystem:
    """Hold a system: its runs, or numbers `given` for them, and its tests, if any."""

    name: str
    runs: Sequence[RecordedRun] = ()
    comparison: Comparison | None = None
    paired: Mapping[int, float] = field(default_factory=dict)  # seed → p of a bootstrap
    given: Summary | Sequence[float] = ()

    def values(self, metric: str) -> list[float]:
        found = (run.record["metrics"].get(metric) for run in self.runs)
        return [float(value) for value in found if value is not None]

    def summary(self, metric: str) -> Summary | float | None:
        """Return mean, deviation (n − 1) and runs; one run's value; None without runs."""
        values = self.given or self.values(metric)
        if not isinstance(values, Summary) and len(values) < 2:
            return values[0] if values else None
        return summarise(values)

    def count(self, metric: str) -> int:
        values = self.given or self.values(metric)
        return values.n if isinstance(values, Summary) else len(values)

    def cost(self, name: str) -> float | None:
        found = [value for run in self.runs if (value := run.cost(name)) is not None]
        return mean(found) if found else None


@dataclass(frozen=True)
class Compared:
    """Hold systems, the metrics to show (the first is tested), and notes on the records."""

    systems: Sequence[ComparedSystem]
    metrics: Sequence[str]
    baseline: str | None
    test: PlannedTest
    alpha: float
    notes: Sequence[str] = ()
    causes: Sequence[str] = ()  # of a difference, as notes name them

    @property
    def metric(self) -> str:
        return self.metrics[0]


def compare_records(
    paths: Sequence[Path],
    metric: str | None = None,
    baseline: str | None = None,
    test: PlannedTest | None = None,
    alpha: float = 0.05,
    columns: Sequence[str] | None = None,
    untested: Mapping[str, str] | None = None,
) -> Compared:
    """Compare systems with a baseline; records are named after systems, see `systems_of`.

    By default the metric is sacreBLEU, or else the test perplexity, the baseline is softmax, the
    test Student's, and all known metrics are `columns`. `untested` says why a system has no test.
    Models below the floor, or best before any update, have none, either.
    """
    records = read_records(paths)
    systems = systems_of(paths, records)
    known = metrics_of(records)
    if metric is None:
        own = known or list(records[0]["metrics"])  # a recipe may have its own
        metric = next((name for name in _PREFERRED if name in own), own[0])
    shown = list(dict.fromkeys([metric, *(known if columns is None else columns)]))
    _require_metrics(shown, records)
    doubts.require_comparable(metric, list(zip(paths, records, strict=True)))
    require_scores(metric, systems)
    if baseline is not None and baseline not in systems:
        near = did_you_mean(baseline, systems)
        raise ValueError(f"--baseline {baseline}: the systems are {', '.join(systems)}{near}")
    control = baseline or (BASELINE if BASELINE in systems else None)
    of_systems = {name: [run.record for run in of] for name, of in systems.items()}
    differences = doubts.provenance_notes(of_systems, metric)
    unfit = dict.fromkeys(doubts.untrained(of_systems), UNTRAINED)
    unfit.pop(control or "", None)  # what is trained may be compared with what is not
    unfit |= dict.fromkeys(doubts.systems_below_floor(of_systems), "a model is below the floor")
    plain = [ComparedSystem(name, runs) for name, runs in systems.items()]
    compared = Compared(plain, shown, control, test or PlannedTest(), alpha)
    compared = _tested(compared, {**unfit, **(untested or {})})
    doubtful = list(_all_doubts(plain, metric))
    mass, differ = doubts.masses(of_systems, metric), bool(differences)
    differ |= doubts.UNKNOWN_MASS in mass  # and so context and words
    causes = [f"a {of}" for of, why in (("difference", differ), ("doubt", doubtful)) if why]
    notes = [*compared.notes, *doubtful, *differences, *filter(None, [mass])]
    return replace(compared, notes=notes, causes=causes)


def _require_metrics(names: Sequence[str], records: Sequence[Record]) -> None:
    there = dict.fromkeys(name for record in records for name in record["metrics"])
    for unknown in filter(None, (unknown_metric(name, there) for name in names)):
        raise ValueError(f"no record has the {unknown}")


def _all_doubts(systems: Sequence[ComparedSystem], metric: str) -> Iterator[str]:
    alike = [one.name for one in systems if len(one.runs) > len({*one.values(metric)}) == 1]
    if alike:
        yield f"All seeds have one score: {', '.join(alike)}. Check that their training differs."
    yield from doubts.doubt_notes(
        {one.name: [run.record for run in one.runs] for one in systems}, metric
    )
    if wild := [one.name for one in systems if is_wild(one, metric)]:
        said = f"Seeds deviate by more than {WILD} nats, as where some failed to train"
        yield f"{said}: {', '.join(wild)}."


def is_wild(one: ComparedSystem, metric: str) -> bool:
    """Whether the seeds of a system deviate by as much as if some of them had failed to train."""
    return is_perplexity(metric) and (pooled_deviation([one], metric) or 0) > WILD


def pooled_deviation(systems: Sequence[ComparedSystem], metric: str) -> float | None:
    """Return the deviation between seeds, of nats if it is a perplexity; None without two seeds."""
    log = math.log if is_perplexity(metric) else float
    runs = [list(map(log, one.values(metric))) for one in systems]
    found = [(len(of) - 1, stdev(of)) for of in runs if len(of) > 1]
    freedom = sum(n for n, _ in found)
    return math.sqrt(sum(n * sd**2 for n, sd in found) / freedom) if found else None


def _tested(compared: Compared, untested: Mapping[str, str]) -> Compared:
    control, metric = compared.baseline, compared.metric
    systems = {system.name: system for system in compared.systems}
    if control is None:
        note = f"Nothing is tested, since no system is named {BASELINE}. Choose the baseline with "
        return replace(compared, notes=[f"{note}--baseline: {', '.join(systems)}."])
    few = f"a test needs two seeds of a system and of {control}"
    equal = "neither runs nor baseline vary"
    base, reasons, tested = systems[control].values(metric), dict[str, str](), [systems[control]]
    for name, system in systems.items():
        values = system.values(metric)
        if name in untested:
            reasons[name] = untested[name]
        elif name == control or control in untested:
            continue
        elif len(values) < 2 or len(base) < 2:
            reasons[name] = few
        elif len({*values}) == len({*base}) == 1:
            reasons[name] = equal
        else:
            tested.append(system)
    notes = []
    for why in dict.fromkeys([*map(untested.get, systems), few, equal]):
        if of := [name for name, reason in reasons.items() if reason == why]:
            notes.append(f"Not tested, since {why}: {', '.join(of)}.")
    if control in untested:
        notes.append(f"Nothing is tested, since the baseline, {control}, is not.")
    systems |= {one.name: one for one in with_tests(compared, tested)} if tested[1:] else {}
    unpaired = {*systems} if metric != BLEU or control in untested else {control, *untested}
    for name in systems.keys() - unpaired:
        found = _paired(systems[name].runs, systems[control].runs)
        systems[name] = replace(systems[name], paired=found)
    return replace(compared, systems=list(systems.values()), notes=notes)


def with_tests(compared: Compared, systems: Sequence[ComparedSystem]) -> list[ComparedSystem]:
    """Return systems with a two-sided t-test of each against the first."""
    baseline, *others = systems
    runs = {one.name: one.given or one.values(compared.metric) for one in systems}
    found = {}
    for one in others:
        try:
            found[one.name] = compared.test(runs[one.name], runs[baseline.name])
        except ValueError as error:
            raise ValueError(f"{one.name} against {baseline.name}: {error}") from None
    adjusted = statistics.holm([test.p_value for test in found.values()])
    control = summarise(runs[baseline.name])
    tested = [baseline]
    for one, p in zip(others, adjusted, strict=True):
        own, raw = summarise(runs[one.name]), found[one.name].p_value
        sure = 1 - compared.test.level(0.05)
        interval = statistics.confidence_interval(own, control, compared.test.equal_variances, sure)
        effect = statistics.hedges_g(own, control)
        test = Comparison(raw, p, own.mean - control.mean, interval, effect)
        tested.append(replace(one, comparison=test))
    return tested


def _paired(runs: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> dict[int, float]:
    """Return by seed the p-value of sacreBLEU's paired bootstrap, where translations are kept."""
    theirs = {run.seed: texts for run in baseline if (texts := _texts(run)) is not None}
    found = {}
    for run in runs:
        own, other = _texts(run), theirs.get(run.seed)
        if own is None or other is None or own[1] != other[1]:
            continue
        scores = statistics.paired_bleu({"baseline": other[0], "system": own[0]}, [own[1]]).scores
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
