"""Compare systems by the records of their runs: means, tests, effects, costs, differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from highrank_plugins.analysis import statistics
from highrank_plugins.analysis.statistics import PlannedTest, Summary, summarise
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results import results_table as recorded
from highrank_plugins.results.doubts import to_nats
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.results_table import RecordedRun, read_runs
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
    """Hold a system: its runs, or a summary `given` in place of them, and its tests, if any."""

    name: str
    runs: Sequence[RecordedRun] = ()
    comparison: Comparison | None = None
    paired: Mapping[int, float] = field(default_factory=dict)  # seed → p of a bootstrap
    given: Summary | None = None

    def values(self, metric: str) -> list[float]:
        found = (run.record["metrics"].get(metric) for run in self.runs)
        return [float(value) for value in found if value is not None]

    def summary(self, metric: str) -> Summary | None:
        """Return mean, deviation (n − 1, NaN of one run) and runs; None without any."""
        values = self.values(metric)
        if self.given or len(values) > 1:
            return self.given or summarise(values)
        return Summary(values[0], math.nan, 1) if values else None

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


def compare_records(paths: Sequence[Path], *of: Any, **more: Any) -> Compared:
    """Compare the systems after which records are named, see `compare_runs`."""
    return compare_runs(read_runs(paths), *of, **more)


def compare_runs(
    runs: Sequence[RecordedRun],
    metric: str | None = None,
    baseline: str | None = None,
    test: PlannedTest | None = None,
    alpha: float = 0.05,
    columns: Sequence[str] | None = None,
    untested: Mapping[str, str] | None = None,
) -> Compared:
    """Compare systems with a baseline.

    By default the metric is sacreBLEU, or else the test perplexity, the baseline is softmax, the
    test Student's, and all known metrics are `columns`. `untested` says why a system has no test.
    Models below the floor, or best before any update, have none, either.
    """
    known, systems = recorded.metrics_of(runs), dict[str, list[RecordedRun]]()
    for run in runs:
        systems.setdefault(run.system, []).append(run)
    there = dict.fromkeys(name for run in runs for name in run.record["metrics"])
    if metric is None:
        own = known or list(there)  # a recipe may have its own
        metric = next((name for name in _PREFERRED if name in own), own[0])
    shown = list(dict.fromkeys([metric, *(known if columns is None else columns)]))
    for unknown in filter(None, (recorded.unknown_metric(name, there) for name in shown)):
        raise ValueError(f"no record has the {unknown}")
    recorded.require_comparable(metric, runs)
    if baseline is not None and baseline not in systems:
        near = did_you_mean(baseline, systems)
        raise ValueError(f"--baseline {baseline}: the systems are {', '.join(systems)}{near}")
    control = baseline or (BASELINE if BASELINE in systems else None)
    differences = recorded.differences(runs, metric)
    unfit = dict.fromkeys(recorded.untrained(runs), UNTRAINED)
    unfit.pop(control or "", None)  # what is trained may be compared with what is not
    unfit |= dict.fromkeys(recorded.below_the_floor(runs), "a model is below the floor")
    plain = [ComparedSystem(name, own) for name, own in systems.items()]
    compared = Compared(plain, shown, control, test or PlannedTest(), alpha)
    compared = with_tests(compared, {**unfit, **(untested or {})})
    doubtful = list(_all_doubts(plain, runs, metric))
    mass, differ = recorded.masses(runs, metric), bool(differences)
    differ |= recorded.UNKNOWN_MASS in mass  # and so context and words
    causes = [f"a {of}" for of, why in (("difference", differ), ("doubt", doubtful)) if why]
    notes = [*compared.notes, *doubtful, *differences, *filter(None, [mass])]
    return replace(compared, notes=notes, causes=causes)


def _all_doubts(
    systems: Sequence[ComparedSystem], runs: Sequence[RecordedRun], metric: str
) -> Iterator[str]:
    alike = [one.name for one in systems if len(one.runs) > len({*one.values(metric)}) == 1]
    if alike:
        yield f"All seeds have one score: {', '.join(alike)}. Check that their training differs."
    yield from recorded.doubt_notes(runs, metric)
    if wild := [one.name for one in systems if is_wild(one, metric)]:
        said = f"Seeds deviate by more than {WILD} nats, as where some failed to train"
        yield f"{said}: {', '.join(wild)}."


def is_wild(one: ComparedSystem, metric: str) -> bool:
    """Whether the seeds of a system deviate by as much as if some of them had failed to train."""
    return to_nats(metric) is not None and (pooled_deviation([one], metric) or 0) > WILD


def pooled_deviation(systems: Sequence[ComparedSystem], metric: str) -> float | None:
    """Return the deviation between seeds, in nats if the metric has them; None without two."""
    scale = to_nats(metric) or float
    runs = [list(map(scale, one.values(metric))) for one in systems]
    found = [(len(of) - 1, stdev(of)) for of in runs if len(of) > 1]
    freedom = sum(n for n, _ in found)
    return math.sqrt(sum(n * sd**2 for n, sd in found) / freedom) if found else None


def with_tests(compared: Compared, untested: Mapping[str, str] = {}) -> Compared:
    """Return a two-sided t-test of each system against the baseline, and notes on the others."""
    control, metric = compared.baseline, compared.metric
    found = {one.name: one.summary(metric) for one in compared.systems}
    if control is None:
        note = f"Nothing is tested, since no system is named {BASELINE}. Choose the baseline with "
        return replace(compared, notes=[f"{note}--baseline: {', '.join(found)}."])
    few = f"a test needs two seeds of a system and of {control}"
    equal = "neither runs nor baseline vary"
    base, tested = found[control], dict[str, Summary]()
    others = [name for name in found if name != control and name not in untested]
    if control in untested:
        others = []
    names: dict[str, list[str]] = {}  # reason → systems without a test
    for name in filter(untested.get, found):
        names.setdefault(untested[name], []).append(name)
    names |= {few: [], equal: []}
    for name in others:
        own = found[name]
        if own is None or base is None or min(own.n, base.n) < 2:
            names[few].append(name)
        elif own.sd == base.sd == 0:
            names[equal].append(name)
        else:
            tested[name] = own
    notes = [f"Not tested, since {why}: {', '.join(of)}." for why, of in names.items() if of]
    if control in untested and not found.keys() <= untested.keys():
        notes.append(f"Nothing is tested, since the baseline, {control}, is not.")
    tests = _tests(base, tested, compared.test) if base else {}
    systems = [replace(one, comparison=tests.get(one.name)) for one in compared.systems]
    if metric == BLEU:
        (control_runs,) = (one.runs for one in systems if one.name == control)
        pairs = {one.name: _paired(one.runs, control_runs) for one in systems if one.name in others}
        systems = [replace(one, paired=pairs.get(one.name, {})) for one in systems]
    return replace(compared, systems=systems, notes=notes)


def _tests(
    base: Summary, systems: Mapping[str, Summary], test: PlannedTest
) -> dict[str, Comparison]:
    p_values, sure = [test(own, base).p_value for own in systems.values()], 1 - test.level(0.05)
    found = {}
    for name, p, holm in zip(systems, p_values, statistics.holm(p_values), strict=True):
        own = systems[name]
        interval = statistics.confidence_interval(own, base, test.equal_variances, sure)
        effect = statistics.hedges_g(own, base)
        found[name] = Comparison(p, holm, own.mean - base.mean, interval, effect)
    return found


def _paired(runs: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> dict[int, float]:
    """Return by seed the p-value of sacreBLEU's paired bootstrap, where translations are kept."""
    theirs = {run.seed: texts for run in baseline if (texts := _texts(run)) is not None}
    found = {}
    for run in runs:
        own, other = _texts(run), theirs.get(run.seed)
        if own is None or other is None or own[1] != other[1]:
            continue
        tested = statistics.paired_bleu({"baseline": other[0], "system": own[0]}, [own[1]])
        found[run.seed] = float(tested["scores"][1]["p_value"] or 0.0)
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
