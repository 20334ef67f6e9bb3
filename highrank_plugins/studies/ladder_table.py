"""Project the differences of a ladder to its target: a table, figures, a sentence for each arm."""

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from highrank_plugins.analysis import projection
from highrank_plugins.analysis.projection import Projection, SizeDifference, project
from highrank_plugins.common.formatting import Lines, short
from highrank_plugins.reports import plots
from highrank_plugins.reports.tables import NOTHING, Cell, Table
from highrank_plugins.results.comparison import compare_runs
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.results_table import (
    RecordedRun,
    read_runs,
    require_comparable,
    run_name,
    texts,
    ways_of_scoring,
)
from highrank_plugins.studies import table as tables
from highrank_plugins.studies.ladder import Ladder, PointSettings, grow
from highrank_plugins.studies.plan import Standing
from highrank_plugins.studies.rates import rate_notes


class Measured(NamedTuple):
    """Hold size → compute and scores by arm (perplexities in nats); `lost` is not projected."""

    rungs: Mapping[str, tuple[float, Mapping[str, Sequence[float]]]]
    notes: Sequence[str] = ()
    lost: Set[str] = frozenset()


def of_points(ladder: Ladder) -> Measured:
    assert isinstance(ladder.settings, PointSettings)
    log = math.log if ladder.settings.in_nats else float
    points = {
        at: {arm: [log(score)] for arm, score in row.items()}
        for at, row in ladder.settings.points.items()
    }
    return Measured({at: (float(at), row) for at, row in points.items()})


def of_records(ladder: Ladder, paths: Sequence[Path]) -> Measured:
    """Return the scores in records of ARM_SIZE-SEED; those of a size must compare."""
    settings, rungs, notes = ladder.settings, dict[str, Any](), dict[str, list[str]]()
    runs, lost = _runs_by_size(ladder, {run_name(path): path for path in paths})
    require_comparable(settings.metric, [run for own in runs.values() for run in own])
    causes, controls = dict[str, None](), list[RecordedRun]()
    base, log = settings.baseline, math.log if settings.in_nats else float
    for size, of in ladder.sizes.items():
        control = [run for run in runs[size] if ladder.systems[run.system] == base]
        if len(control) < 2:
            notes.setdefault(f"{base} has no two runs, so nothing is projected", []).append(size)
            continue
        compared = compare_runs(runs[size], settings.metric, f"{base}_{size}", columns=[])
        controls += [replace(run, system=size) for run in control]
        rungs[size] = (of.compute or _compute(control[0].record, size), {})
        for one in compared.systems:
            arm = ladder.systems[one.name]
            if any(_reads(run.record) != _reads(control[0].record) for run in one.runs):
                notes.setdefault(f"{arm} has read other tokens than {base}", []).append(size)
            elif one.comparison or arm == base:
                rungs[size][1][arm] = [log(value) for value in one.values(settings.metric)]
        causes |= dict.fromkeys(compared.causes)
        for note in compared.notes:
            notes.setdefault(note.removesuffix("."), []).append(size)
    _check_computes(ladder, {size: at for size, (at, _) in rungs.items()})
    said = [f"{n} ({', '.join(at)})." if at else f"{n}." for n, at in notes.items()]
    between = [*ways_of_scoring(controls, settings.metric), *filter(None, [texts(controls)])]
    if every := [*({**causes, "a difference": None} if between else causes)]:
        many = f"{' or '.join(every).capitalize()} named above may be the cause of a difference."
        between.append(many)
    said += between
    said += [f"Not projected, since runs are missing: {', '.join(sorted(lost))}."] * bool(lost)
    return Measured(rungs, said, {*ladder.arms} if len(rungs) < len(ladder.sizes) else lost)


def _runs_by_size(
    ladder: Ladder, there: Mapping[str, Path]
) -> tuple[dict[str, list[RecordedRun]], set[str]]:
    """Return the runs of each size that the file lists, and the arms without some."""
    assert ladder.study is not None
    listed = {one.name: one.system for one in ladder.study.members}
    runs = {}
    for size in ladder.sizes:
        systems = {f"{arm}_{size}" for arm in ladder.arms}
        own = [name for name, system in listed.items() if name in there and system in systems]
        runs[size] = read_runs([there[name] for name in own])
    lost = {ladder.systems[system] for name, system in listed.items() if name not in there}
    return runs, lost


def _check_computes(ladder: Ladder, computes: Mapping[str, float]) -> None:
    """Refuse computes that do not grow with the sizes, before the table counts as a look."""
    if not grow([*computes.values()]):
        assert ladder.study is not None
        raise ValueError(
            f"{ladder.study.file}: the computes of {', '.join(computes)} are "
            f"{', '.join(map(short, computes.values()))}: expected the smallest first, no two alike"
        )


def _reads(record: Mapping[str, Any]) -> tuple[float, float]:
    """Return the updates of a run, and the tokens of a full batch; 0 where a record lacks them."""
    of = record.get("config", {}).get("train", {})
    long = of.get("bptt") or of.get("tokens_per_sample") or 0
    batch = of.get("max_tokens") or float(of.get("batch_size") or 0) * float(long)
    updates, parts = record["train"].get("updates") or 0, str(of.get("update_freq") or 1)
    steps = re.fullmatch(r"\[?\s*(\d+)\s*\]?", parts)  # one number for all epochs
    processes = float(of.get("distributed_world_size") or 1)
    return float(updates), float(batch) * float(steps[1] if steps else 0) * processes


def _compute(record: Mapping[str, Any], size: str) -> float:
    found = 6 * float(record["train"].get("parameters", 0)) * math.prod(_reads(record))
    if not found > 0:
        raise ValueError(f"{size}: its records do not tell the compute; state it: compute in sizes")
    return found


def judge(ladder: Ladder, measured: Measured) -> tuple[Table, list[Lines]]:
    """Return the table, whose last notes are the sentences, and a figure for each arm."""
    settings, metric, rungs = ladder.settings, metric_named(ladder.settings.metric), measured.rungs
    (base, *arms), in_nats = ladder.arms, settings.in_nats
    sd = settings.deviation if isinstance(settings, PointSettings) else None
    step = projection.size_difference
    steps = {
        arm: {n: step(at, of[arm], of[base], sd) for n, (at, of) in rungs.items() if arm in of}
        for arm in arms
    }
    lost = {*arms} if base in measured.lost else measured.lost
    whole = [arm for arm in arms if arm not in lost and len(steps[arm]) == len(rungs)]
    sure = 1 - 0.05 / max(1, len(whole))
    target = settings.target * max((at for at, _ in rungs.values()), default=0)
    found = {arm: project([*steps[arm].values()], target, sure) for arm in whole}
    rows = []
    for size, (at, of) in rungs.items():
        level = metric.shown(math.exp(mean(of[base])) if in_nats else mean(of[base]))
        seeds = "/".join(str(len(of.get(arm, ()))) for arm in ladder.arms)
        cells = [_cell(arm, steps[arm].get(size), sure, arm in lost) for arm in arms]
        rows.append([Cell(size), Cell(short(at)), Cell(seeds), Cell(level), *cells])
    if whole:
        cells = [_cell(arm, found.get(arm), sure) for arm in arms]
        rows.append([Cell("projected"), Cell(short(target)), NOTHING, NOTHING, *cells])
    unit = "nats" if in_nats else metric.title
    headings = ["size", "compute", "seeds", f"{base}, {metric.title}"]
    headings += [f"{arm} − {base}, {unit}" for arm in arms]
    together = f", for the {len(whole)} projected arms together" if len(whole) > 1 else ""
    said = (short(target), metric.better, sure)
    sentences = [_sentence(arm, steps[arm], found[arm], said) for arm in whole]
    notes = [*measured.notes, f"Intervals: 95 %{together}.", *sentences]
    axes = ("compute", f"difference from {base}, {unit}")
    draw = projection.projection_figure
    figures = [draw(arm, [*steps[arm].values()], target, sure, axes) for arm in whole]
    return Table("", headings, rows, notes), figures


def _sentence(
    arm: str, steps: Mapping[str, SizeDifference], end: Projection, said: tuple[str, int, float]
) -> str:
    """Return what is known at the sizes, and at the target, for (target, better, sure)."""
    target, better, sure = said
    sizes: dict[str, list[str]] = {}
    for size, of in steps.items():
        sizes.setdefault(_word(of.ends(sure), better), []).append(size)
    words = "; ".join(f"{word} at {', '.join(names)}" for word, names in sizes.items())
    p = "< 1e-6" if end.p_misfit < 1e-6 else f"= {end.p_misfit:.2g}"
    bent = f" (no line fits, p {p}, so this is wider)"
    return (
        f"{arm} {words}; at {target} between {end.ends[0]:+.4f} and {end.ends[1]:+.4f}"
        f"{bent if end.p_misfit < projection.MISFIT else ''}: {_word(end.ends, better)}."
    )


def _word(ends: tuple[float, float], better: int) -> str:
    return (
        "not decided" if ends[0] <= 0 <= ends[1] else "helps" if ends[0] * better > 0 else "hurts"
    )


def _cell(
    arm: str, of: SizeDifference | Projection | None, sure: float, is_lost: bool = False
) -> Cell:
    """Return a difference with its interval, if the arm is projected."""
    if of is None:
        return NOTHING
    if is_lost:
        return Cell(f"{of.difference:+.4f}", values={arm: of.difference})
    low, high = of.ends(sure) if isinstance(of, SizeDifference) else of.ends
    values = {arm: of.difference, f"{arm} low": low, f"{arm} high": high}
    return Cell(f"{of.difference:+.4f} [{low:+.4f}, {high:+.4f}]", low * high > 0, values)


def ladder_tables(
    ladder: Ladder, of: Standing, records: list[Path], notes: list[str]
) -> list[Table]:
    rates = {ladder.systems[one]: losses for one, losses in of.study.rates.items()}
    notes = [*notes, *rate_notes(rates, "lr")]
    measured = of_records(ladder, records)
    drawn = of.folder / "ladder.svg"
    drawn.unlink(missing_ok=True)  # of an earlier table, which may have projected more
    reasons = tables.untested(of, ladder.systems)
    tables.keep_look(of, reasons, ladder.systems)
    if not measured.rungs:
        return tables.no_records(of, [*notes, *measured.notes])
    for why in dict.fromkeys(reasons.values()):
        arms = dict.fromkeys(ladder.systems[one] for one in reasons if reasons[one] == why)
        notes.append(f"Not projected, since {why}: {', '.join(arms)}.")
    lost = measured.lost | {ladder.systems[one] for one in reasons}
    table, figures = judge(ladder, Measured(measured.rungs, [*notes, *measured.notes], lost))
    if figures and plots.is_available():
        plots.draw(drawn, *figures)
    return [table]
