"""Show records as tables: systems with their places, tests and costs, runs, correlations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from highrank_plugins.analysis import statistics
from highrank_plugins.common.names import distinct_names
from highrank_plugins.reports.tables import NOTHING, Cell, Table, number
from highrank_plugins.results import results_table as recorded
from highrank_plugins.results.comparison import Compared, ComparedSystem, Comparison, is_wild
from highrank_plugins.results.metrics import COSTS, Metric, metric_named
from highrank_plugins.results.published import published_rows
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.verdicts import judge

_TESTS = {"student": "Student's unpaired two-sided t-test", "welch": "Welch's two-sided t-test"}
# heading, name in CSV, field of a `Comparison`, and its format
_TESTED = (
    ("Hedges' g", "g", "effect", "+.1f"),
    ("p", "p", "p_value", ".2g"),
    ("p (Holm)", "p Holm", "holm", ".2g"),
)
_TIE = "not told from"
# the last sentence of a table of single runs
CLAIM = (
    "What can be claimed: not which system is better, since the seeds of one system differ, too; "
    "`highrank compare` tests them."
)
NO_CLAIM = "What can be claimed: nothing, since the notes above name scores that do not compare."


def comparison_tables(
    compared: Compared, timed: bool = True, paper: tuple[str, str | None] | None = None
) -> list[Table]:
    """Return the tables of the tested metric with costs, of other metrics and of verdicts.

    `timed` costs are what a repeated run would change: speed and memory. Effects and p-values,
    which places and the last note sum up, are details.
    """
    compared, ranked = _by_score(compared)
    tables = [_tested(compared, ranked, timed)]
    if len(compared.metrics) > 1:
        others = list(map(metric_named, compared.metrics[1:]))
        headings = ["system", *(one.title for one in others)]
        names = [_name(one, compared.baseline) for one in compared.systems]
        cells = [[_summary(one, of) for one in others] for of in compared.systems]
        rows = [[name, *own] for name, own in zip(names, cells, strict=True)]
        tables.append(Table("Other metrics", headings, rows))
    if paper is not None:
        tables.append(_verdicts(compared, *paper))
    return [*tables[:-1], replace(tables[-1], notes=[*tables[-1].notes, claim(compared)])]


def claim(compared: Compared) -> str:
    """Return one sentence: which systems the tests tell from the baseline, and which not."""
    found = [(one.name, one.comparison) for one in compared.systems if one.comparison]
    if not found:
        return (
            "What can be claimed: nothing about which system is better, since nothing was tested."
        )
    metric, base = metric_named(compared.metric), compared.baseline
    words: dict[str, list[str]] = {}
    for name, test in found:
        better = test.difference * metric.better > 0
        kind = "better than" if better else "worse than" if metric.better else "unlike"
        word = kind if test.holm < compared.alpha else _TIE
        words.setdefault(word, []).append(name)
    said = [
        f"{', '.join(words[word])} {'is' if len(words[word]) == 1 else 'are'} {word} {base}"
        + ("" if word == _TIE else f" (p < {compared.alpha:g} after the adjustment)")
        for word in ("better than", "worse than", "unlike", _TIE)
        if word in words
    ]
    causes = " or ".join(compared.causes)
    but = f". But {causes} named above may be the cause" if causes else ""
    of = f"of these runs, this text and {metric.title} alone"
    return f"What can be claimed, {of}: {'; '.join(said)}{but}."


def _by_score(compared: Compared) -> tuple[Compared, statistics.Ranking | None]:
    """Return the comparison with its systems sorted, and the places of the first; None without."""
    metric, systems = metric_named(compared.metric), compared.systems
    if not metric.better:  # nobody knows which is the first
        return compared, None

    def place(one: ComparedSystem) -> float:
        found = one.summary(metric.name)
        return math.inf if found is None else -metric.better * found.mean

    tested = [one for one in systems if one.comparison or one.name == compared.baseline]
    if len(tested) < 2:
        return replace(compared, systems=sorted(systems, key=place)), None
    runs = [of for one in tested if (of := one.summary(metric.name))]
    found = statistics.ranking(runs, metric.better, compared.alpha, compared.test)
    others = sorted((one for one in systems if one not in tested), key=place)
    return replace(compared, systems=[*(tested[i] for i in found.order), *others]), found


def _tested(compared: Compared, ranked: statistics.Ranking | None, timed: bool) -> Table:
    metric, systems = metric_named(compared.metric), compared.systems
    tests = [one.comparison for one in systems]
    tested = sum(test is not None for test in tests)
    counts = [of.n if (of := one.summary(metric.name)) else 0 for one in systems]
    columns = [
        ("system", [_name(one, compared.baseline) for one in systems]),
        ("seeds", [number(count, "d", "seeds") for count in counts]),
        (metric.title, [_summary(metric, one, compared.alpha) for one in systems]),
    ]
    if ranked:
        columns.insert(1, ("place", _places(ranked, len(systems))))
    if tested:
        found = [NOTHING if test is None else _difference(metric, test) for test in tests]
        columns.append(("difference [95 %]", found))
    shown = len(columns)
    for heading, name, field, form in _TESTED if tested else ():
        columns.append((heading, [number(getattr(t, field, None), form, name) for t in tests]))
    if any(system.paired for system in systems):
        columns.append(("paired bootstrap, p", list(map(_paired, systems))))
    details = [heading for heading, _ in columns[shown:]] if ranked else []
    for cost in filter(lambda cost: timed or cost.group != "timed", COSTS):
        costs = [number(system.cost(cost.name), cost.format, cost.name) for system in systems]
        if any(cell is not NOTHING for cell in costs):
            columns.append((cost.title, costs))
    notes = ["± is the sample standard deviation over seeds (n − 1 below)."]
    if tested:
        notes += [*_test_notes(compared, ranked, tested)]
        notes.append(_least_difference(metric, compared, tested))
    headings, cells = zip(*columns, strict=True)
    title = metric.title + (f" against {compared.baseline}" if compared.baseline else "")
    rows, lines = list(zip(*cells, strict=True)), ranked.lines if ranked else ()
    return Table(title, headings, rows, [*notes, *compared.notes], lines, details)


def _test_notes(
    compared: Compared, ranked: statistics.Ranking | None, tested: int
) -> Iterator[str]:
    """Yield which tests are behind places and lines, and which behind bold and p."""
    test, base = _TESTS[compared.test.name], compared.baseline
    adjusted = f"adjusted for {tested} system{'' if tested == 1 else 's'} (Holm); intervals are not"
    if compared.test.looks:
        first, most = compared.test.looks
        test += f", made sequential for looks at {first} to {most} seeds,"
        adjusted += ", but hold at every look"
    if not ranked:
        yield f"p: {test} against {base}, {adjusted}."
        yield "Nothing is bold, since the name of the metric does not say what is better."
        return
    k = len(ranked.order)
    pairs = "the pair" if k == 2 else f"all {k * (k - 1) // 2} pairs, adjusted together (Holm)"
    yield (
        f"Places: from 1 + the better systems to {k} − the worse ones, by {test} of {pairs}, "
        f"at {compared.alpha:g}."
    )
    if ranked.lines:
        yield "All systems above a line are told from all below."
    yield f"Bold: better than {base} by the same test, {adjusted}."


def _name(one: ComparedSystem, baseline: str | None) -> Cell:
    mark = " (baseline)" if one.name == baseline else ""
    return Cell(f"{one.name}{mark}", values={"system": one.name})


def _places(ranked: statistics.Ranking, systems: int) -> list[Cell]:
    """Return a cell of places for each system, in order; its group lies between two lines."""
    cells = []
    for row, index in enumerate(ranked.order):
        low, high = ranked.ranges[index]
        group = 1 + sum(line <= row for line in ranked.lines)
        values: dict[str, float | str] = {"place from": low, "place to": high, "group": group}
        cells.append(Cell(f"{low}" if low == high else f"{low}–{high}", values=values))
    return cells + [NOTHING] * (systems - len(cells))


def _least_difference(metric: Metric, compared: Compared, tested: int) -> str:
    """Say what these seeds would find in four studies of five, if Holm adjusts most."""
    # systems that failed to train do not tell how much the seeds of others deviate
    every = [one for one in compared.systems if one.comparison or one.name == compared.baseline]
    wild = [one for one in every if is_wild(one, metric.name)]
    seen = [one for one in every if one not in wild] or every
    runs = [of for one in seen if (of := one.summary(metric.name))]
    squares = sum((of.n - 1) * of.sd**2 for of in runs)
    deviation = math.sqrt(squares / sum(of.n - 1 for of in runs))
    seeds = min(of.n for of in runs)
    level = compared.test.level(compared.alpha / tested)
    least = metric.shown(deviation * statistics.smallest_effect(seeds, level))
    others = f", but for {', '.join(one.name for one in wild)}" if wild and seen != every else ""
    return f"{seeds} seeds would find a true difference of {least} in 80 % of studies{others}."


def _summary(metric: Metric, system: ComparedSystem, alpha: float = 0.0) -> Cell:
    """Return mean and deviation, or one value; bold if better than the baseline at `alpha`."""
    found, test = system.summary(metric.name), system.comparison
    if found is None:
        return NOTHING
    bold = test is not None and test.holm < alpha and test.difference * metric.better > 0
    text, sd = metric.shown(found.mean), found.sd if found.n > 1 else ""
    text += f" ± {metric.shown(found.sd)}" if found.n > 1 else ""
    return Cell(text, bold, {f"{metric.name} mean": found.mean, f"{metric.name} sd": sd})


def _difference(metric: Metric, test: Comparison) -> Cell:
    low, high = map(metric.shown, test.interval)
    text = f"{test.difference:+{metric.format}} [{low}, {high}]"
    values = (test.difference, *test.interval)
    return Cell(text, values=dict(zip(("difference", "low", "high"), values, strict=True)))


def _paired(system: ComparedSystem) -> Cell:
    """Return p-values in the order of seeds, with a dash for a run without translations."""
    if not system.paired:
        return NOTHING
    found = [system.paired.get(seed) for seed in sorted(run.seed for run in system.runs)]
    text = ", ".join("–" if p is None else f"{p:.2g}" for p in found)
    plain = ", ".join("" if p is None else str(p) for p in found)
    return Cell(text, values={"paired bootstrap p": plain})


def _verdicts(compared: Compared, paper: str, task: str | None) -> Table:
    verdicts = judge(compared, paper, task)
    rows = [list(map(Cell, cells)) for *cells, _ in verdicts]
    details = [line for verdict in verdicts for line in verdict.details]
    ours = f"ours, {metric_named(compared.metric).title}"
    headings = ["system", ours, paper, "published", "verdict", "why"]
    return Table(f"Compared with {paper}", headings, rows, details)


def runs_table(paths: Sequence[Path]) -> Table:
    """Return a row per record, named by its file, or by its folder if that is `results.json`."""
    runs = recorded.read_runs(paths, distinct_names(paths, RESULTS), ("config", "seeds", "git"))
    scores = list(map(metric_named, recorded.metrics_of(runs)))
    costs = [metric_named(name) for name in ("parameters", "seconds_per_epoch")]
    costs = [of for of in costs if any(of.name in run.record["train"] for run in runs)]
    costs += map(metric_named, ("updates", "words_per_second"))
    rows = [
        [
            Cell(run.system),
            *(number(run.record["metrics"].get(of.name), of.format, of.name) for of in scores),
            *(number(run.record["train"].get(of.name), of.format, of.name) for of in costs),
            Cell(str(run.record["hardware"].get("cores", "–"))),
            Cell(run.record["versions"].get("torch", "–")),
            Cell(str((run.record["git"] or {}).get("revision") or "-")[:9]),
        ]
        for run in runs
    ]
    apart = list(filter(None, [*recorded.incomparable(runs), recorded.texts(runs)]))
    last = NO_CLAIM if apart or recorded.below_the_floor(runs) else CLAIM
    notes = [*recorded.doubt_notes(runs), *apart, *[last][: len(rows) - 1]]
    headings = ["run", *(of.title for of in (*scores, *costs)), "cores", "torch", "revision"]
    # each note is a paragraph
    return Table("", headings, rows, ["\n\n".join(notes)] if notes else [])


def published_table(task: str, ours: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the papers' scores next to ours, see `published_rows`; each note is a paragraph."""
    headings, rows, notes = published_rows(task, ours)
    return Table("", headings, [list(map(Cell, row)) for row in rows], ["\n\n".join(notes)])


def correlation_table(
    systems: Mapping[str, Sequence[Sequence[float]]],
    x: str,
    y: str,
    within: tuple[float, float] | None,
) -> Table:
    """Return the means of a system's seeds, which are no independent points, and a correlation."""
    points = {name: list(map(mean, zip(*runs, strict=True))) for name, runs in systems.items()}
    low, high = within or (-math.inf, math.inf)
    points = {name: at for name, at in points.items() if low <= at[1] <= high}
    if len(points) < 3:
        where = "" if within is None else f" have {y} within {low:g},{high:g}"
        raise ValueError(f"{len(points)} systems{where}: a correlation needs three")
    found = statistics.pearson(*zip(*points.values(), strict=True))
    of = metric_named(x), metric_named(y)
    rows = [
        [Cell(name), *(number(a, one.format, one.name) for a, one in zip(at, of, strict=True))]
        for name, at in points.items()
    ]
    note = (
        f"Pearson's correlation of {of[0].title} and {of[1].title} over {found.n} systems: "
        f"r = {found.r:.3g}, p = {found.p_value:.2g}. A system is the mean of its seeds."
    )
    return Table("", ["system", *(one.title for one in of)], rows, [note])
