"""Show a comparison of systems as tables: the tested metric, then all other metrics."""

from collections.abc import Sequence
from dataclasses import replace

from highrank_plugins.analysis.statistics import Summary
from highrank_plugins.common.score import direction
from highrank_plugins.reports.tables import Cell, Table
from highrank_plugins.results.comparison import Compared, ComparedSystem
from highrank_plugins.results.results_table import column, number
from highrank_plugins.results.verdicts import judge

_TESTS = {"student": "Student's unpaired two-sided t-test", "welch": "Welch's two-sided t-test"}
NOTHING = Cell("–", values=[""])
_TIE = "not told from"
# a number of a training run → heading, format
_COSTS = {
    "parameters": ("parameters", ",.0f"),
    "words_per_second": ("words/s in training", ",.0f"),
    "seconds_per_epoch": ("s/epoch", ",.0f"),
    "peak_memory_gib": ("memory, GiB", ".2f"),
}
# numbers that change when the same seed is run again
TIMED = ("words_per_second", "seconds_per_epoch", "peak_memory_gib")


def comparison_tables(
    compared: Compared, timed: bool = True, paper: tuple[str, str | None] | None = None
) -> list[Table]:
    """Return the table of the tested metric with costs, and that of the others if there are any.

    The last note of the last table says what can be claimed.

    Args:
        timed: whether to show what a repeated run would change: speed and memory.
        paper: a paper, and a task or None, for a table of verdicts, see `judge`.
    """
    tables = [_tested(compared, timed)]
    if len(compared.metrics) > 1:
        tables.append(_others(compared))
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
    sign, base = direction(compared.metric), compared.baseline
    heading = column(compared.metric).heading
    words: dict[str, list[str]] = {}
    for name, test in found:
        kind = "better than" if test.difference * sign > 0 else "worse than" if sign else "unlike"
        word = kind if test.holm < compared.alpha else _TIE
        words.setdefault(word, []).append(name)
    said = [
        f"{', '.join(words[word])} {'is' if len(words[word]) == 1 else 'are'} {word} {base}"
        + ("" if word == _TIE else f" (p < {compared.alpha:g} after the adjustment)")
        for word in ("better than", "worse than", "unlike", _TIE)
        if word in words
    ]
    causes = " or ".join(compared.causes)
    but = f", unless {causes} named above is the cause" if causes else ""
    of = f"of these runs, this text and {heading} alone"
    return f"What can be claimed, {of}: {'; '.join(said)}{but}."


def _tested(compared: Compared, timed: bool) -> Table:
    metric, heading = compared.metric, column(compared.metric).heading
    tested = any(system.comparison for system in compared.systems)
    paired = any(system.paired for system in compared.systems)
    costs = [
        name
        for name in _COSTS
        if (timed or name not in TIMED)
        and any(system.cost(name) is not None for system in compared.systems)
    ]
    headings = ["system", "seeds", heading]
    values = [["system"], ["seeds"], [f"{metric} mean", f"{metric} sd"]]
    if tested:
        headings += ["difference [95 %]", "Hedges' g", "p", "p (Holm)"]
        values += [["difference", "low", "high"], ["g"], ["p"], ["p Holm"]]
    if paired:
        headings.append("paired bootstrap, p")
        values.append(["paired bootstrap p"])
    headings += [_COSTS[name][0] for name in costs]
    values += [[name] for name in costs]
    rows = []
    for system in compared.systems:
        cells = [Cell(system.name), _count(len(system.values(metric))), _mean(compared, system)]
        cells += _statistics(compared, system) if tested else []
        if paired:
            cells.append(_paired(system))
        cells += [_cost(system, name) for name in costs]
        rows.append(cells)
    notes = [*_legend(compared, tested), *compared.notes]
    return Table(f"{heading} against {compared.baseline}", headings, rows, notes, values)


def _paired(system: ComparedSystem) -> Cell:
    """Return p-values in the order of seeds, with a dash for a run without translations."""
    if not system.paired:
        return NOTHING
    found = [system.paired.get(seed) for seed in sorted(run.seed for run in system.runs)]
    text = ", ".join("–" if p is None else f"{p:.2g}" for p in found)
    return Cell(text, values=[", ".join("" if p is None else str(p) for p in found)])


def _legend(compared: Compared, tested: bool) -> list[str]:
    """Return notes that explain the numbers."""
    lines = ["± is the sample standard deviation over seeds (n − 1 below)."]
    if tested:
        count = sum(system.comparison is not None for system in compared.systems)
        bold = f"Bold: significantly better at {compared.alpha:g} after the adjustment"
        if not direction(compared.metric):
            bold = "Nothing is bold, since the name of the metric does not say what is better"
        lines.append(
            f"p: {_TESTS[compared.test]} against {compared.baseline}, adjusted for {count} "
            f"system{'' if count == 1 else 's'} (Holm); intervals are not. {bold}."
        )
    return lines


def _count(count: int) -> Cell:
    return Cell(str(count), values=[count])


def _mean(compared: Compared, system: ComparedSystem) -> Cell:
    found, sign = system.comparison, direction(compared.metric)
    bold = found is not None and found.holm < compared.alpha and found.difference * sign > 0
    return _summary(compared.metric, system.summary(compared.metric), bold)


def _summary(metric: str, summary: Summary | float | None, bold: bool = False) -> Cell:
    if isinstance(summary, Summary):
        text = f"{number(metric, summary.mean)} ± {number(metric, summary.sd)}"
        return Cell(text, bold, [summary.mean, summary.sd])
    return NOTHING if summary is None else Cell(number(metric, summary), bold, [summary])


def _statistics(compared: Compared, system: ComparedSystem) -> list[Cell]:
    found = system.comparison
    if found is None:
        return [NOTHING] * 4
    low, high = (number(compared.metric, end) for end in found.interval)
    return [
        Cell(
            f"{found.difference:+{column(compared.metric).format}} [{low}, {high}]",
            values=[found.difference, *found.interval],
        ),
        Cell(f"{found.effect:+.1f}", values=[found.effect]),
        Cell(f"{found.p_value:.2g}", values=[found.p_value]),
        Cell(f"{found.holm:.2g}", values=[found.holm]),
    ]


def _cost(system: ComparedSystem, name: str) -> Cell:
    value = system.cost(name)
    return NOTHING if value is None else Cell(f"{value:{_COSTS[name][1]}}", values=[value])


def _others(compared: Compared) -> Table:
    names: Sequence[str] = compared.metrics[1:]
    return Table(
        "Other metrics",
        ["system", *(column(name).heading for name in names)],
        [
            [Cell(system.name), *(_summary(name, system.summary(name)) for name in names)]
            for system in compared.systems
        ],
        values=[["system"], *([f"{name} mean", f"{name} sd"] for name in names)],
    )


def _verdicts(compared: Compared, paper: str, task: str | None) -> Table:
    verdicts = judge(compared, paper, task)
    rows = [
        list(map(Cell, (one.system, one.ours, one.published, one.theirs, one.verdict, one.why)))
        for one in verdicts
    ]
    details = [line for verdict in verdicts for line in verdict.details]
    ours = f"ours, {column(compared.metric).heading}"
    headings = ["system", ours, paper, "published", "verdict", "why"]
    return Table(f"Compared with {paper}", headings, rows, details)
