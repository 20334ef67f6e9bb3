"""Run SpamLang for layers × vocabularies × widths × seeds, and summarise the runs in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from highrank_plugins.analysis.statistics import holm, student_t, summarise
from highrank_plugins.common.files import read_json
from highrank_plugins.common.formatting import Scatter, table
from highrank_plugins.heads import head_options
from recipes.synthetic.fitting import heads_named
from recipes.synthetic.spamlang import GOAL, SpamLangRun, SpamLangSettings, spamlang

SpamLangRecord = dict[str, Any]
Case = tuple[SpamLangRecord, dict[str, Any], SpamLangSettings]
_Group = tuple[int, int, str]  # M, d and layer
_HEADINGS = [
    "M", "d", "layer", f"steps to {GOAL:.0%}", "p (Holm)", "correct at the end",
    "retention at contexts", "at features",
]  # fmt: skip


def grid_cases(
    heads: Sequence[str], classes: Sequence[int], dims: Sequence[int], seeds: Sequence[int],
    *, backward_ranks: Sequence[int], components: int | None, context_scale: float,
    steps: int, lr: float,
) -> Iterator[Case]:  # fmt: skip
    """Yield the key of each run, with the layer's options and the settings.

    For `heads` see `heads_named`. A softmax with each of `backward_ranks` below the width is a
    control; `context_scale` is of the mixtures' contexts.
    """
    for wanted in backward_ranks:
        if not 1 <= wanted < max(dims):
            raise ValueError(
                f"--backward-rank {wanted}: must lie in [1, {max(dims)}), below the largest width"
            )
    layers: list[tuple[str, dict[str, Any], int | None]] = []
    for name, options in heads_named(heads, components).items():
        if "context_scale" in head_options(options["name"]):
            options = options | {"context_scale": context_scale}
            name += f", contexts × {context_scale:g}" if context_scale != 1 else ""
        layers.append((name, options, None))
    if context_scale != 1 and not any("context_scale" in options for _, options, _ in layers):
        raise ValueError(
            f"--context-scale {context_scale:g}: changes nothing; no layer of --heads has contexts"
        )
    layers += [
        (f"softmax, gradient of rank {rank}", {"name": "softmax"}, rank) for rank in backward_ranks
    ]
    for many, dim, (label, options, rank), seed in product(classes, dims, layers, seeds):
        if rank is None or rank < dim:
            settings = SpamLangSettings(
                classes=many, dim=dim, backward_rank=rank, steps=steps, lr=lr, seed=seed
            )
            yield {"classes": many, "dim": dim, "layer": label, "seed": seed}, options, settings


def run_grid(
    cases: Iterable[Case],
    done: Sequence[SpamLangRecord],
    save: Callable[[list[SpamLangRecord]], None],
    say: Callable[[str], None],
) -> list[SpamLangRecord]:
    """Return all runs of a grid; those in `done` are not repeated.

    A run of `done` that has not learnt is replaced if the grid allows more steps.
    """
    runs = list(done)
    checked = [(*case, _earlier(runs, *case)) for case in cases]
    for key, options, settings, earlier in checked:
        if earlier is not None:
            if earlier["steps"] or earlier["setup"]["settings"]["steps"] >= settings.steps:
                continue
            runs.remove(earlier)
        found = asdict(spamlang(options, settings))
        setup = {"options": options, "settings": asdict(settings)}
        runs.append(key | found | {"setup": setup})
        say(f"{_named(key)}: {found['steps'] or f'more than {settings.steps}'}")
        save(runs)
    return runs


def _earlier(
    runs: Sequence[SpamLangRecord],
    key: SpamLangRecord,
    options: dict[str, Any],
    settings: SpamLangSettings,
) -> SpamLangRecord | None:
    """Return the run of a case, if there is one; it may have had another limit of steps."""
    found = next((run for run in runs if key.items() <= run.items()), None)
    if found is not None:
        before = found["setup"]["options"] | found["setup"]["settings"] | {"steps": 0}
        now = options | asdict(settings) | {"steps": 0}
        changed = [
            f"{name} {before.get(name)}, not {now.get(name)}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        if changed:
            raise ValueError(
                f"--output has a run of {_named(key)} with other settings ({', '.join(changed)}): "
                "name another file"
            )
    return found


def _named(key: SpamLangRecord) -> str:
    return f"{key['layer']}, M = {key['classes']}, d = {key['dim']}, seed {key['seed']}"


_FIELDS = {"classes", "dim", "layer", "seed", "setup", *(one.name for one in fields(SpamLangRun))}


def read_runs(file: Path) -> list[SpamLangRecord]:
    """Return the runs in the JSON file of an earlier call."""
    found = read_json(file)
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not all(
        isinstance(run, dict) and run.keys() >= _FIELDS for run in runs
    ):
        raise ValueError(f"{file}: not a record of spamlang; name another file, or remove it")
    return runs


def grid_figures(runs: Sequence[SpamLangRecord]) -> list[Scatter]:
    """Return a figure for each width: the steps of the runs that have learnt, over M."""
    figures = []
    for dim in sorted({run["dim"] for run in runs}):
        lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for run in sorted(runs, key=lambda run: run["classes"]):
            if run["dim"] == dim and run["steps"] is not None:
                points = lines.setdefault(run["layer"], {})
                name = f"{run['layer']}, M = {run['classes']:,}"
                points.setdefault(name, []).append((run["classes"], run["steps"]))
        names = [[*points] for points in lines.values()]
        figures.append(
            Scatter(
                {name: found for points in lines.values() for name, found in points.items()},
                f"SpamLang, d = {dim}",
                ("number of symbols M", f"steps to {GOAL:.0%}"),
                "loglog",
                connected=[points for points in names if len(points) > 1],
            )
        )
    return figures


def grid_table(runs: Sequence[SpamLangRecord]) -> str:
    """Return a row for each vocabulary, width and layer, over its seeds, in Markdown.

    A layer is compared with the softmax of the same vocabulary and width if all runs of both have
    reached the goal.
    """
    groups: dict[_Group, list[SpamLangRecord]] = {}
    for run in runs:
        groups.setdefault((run["classes"], run["dim"], run["layer"]), []).append(run)
    p_values = _p_values(groups)
    rows = []
    for case, group in sorted(groups.items(), key=lambda item: item[0][:2]):
        classes, dim, layer = case
        shares = [f"{_mean(group, name):.3f}" for name in ("contexts", "features")]
        p_value = f"{p_values[case]:.2g}" if case in p_values else "–"
        correct = f"{_mean(group, 'accuracy'):.1%}"
        rows.append([f"{classes:,}", str(dim), layer, _steps(group), p_value, correct, *shares])
    count = "1 comparison" if len(p_values) == 1 else f"{len(p_values)} comparisons"
    note = (
        "p: Student's unpaired two-sided t-test of the steps against the softmax with the same M "
        f"and d, adjusted for {count} (Holm)."
    )
    return table(_HEADINGS, rows) + (f"\n{note}\n" if p_values else "")


def _p_values(groups: Mapping[_Group, Sequence[SpamLangRecord]]) -> dict[_Group, float]:
    """Return the adjusted p-value of each case that can be compared with its softmax."""
    found = {}
    for classes, dim, layer in groups:
        case, softmax = (classes, dim, layer), (classes, dim, "softmax")
        steps = [[run["steps"] for run in groups.get(one, ())] for one in (softmax, case)]
        comparable = all(len(one) > 1 and None not in one for one in steps)
        if case != softmax and comparable and max(len(set(one)) for one in steps) > 1:
            found[case] = student_t(*steps).p_value
    return dict(zip(found, holm([*found.values()]), strict=True))


def _mean(runs: Sequence[SpamLangRecord], name: str) -> float:
    return mean(run[name] for run in runs)


def _steps(runs: Sequence[SpamLangRecord]) -> str:
    """Return mean ± deviation, or the number of runs that reached the goal, if not all did."""
    reached = [run["steps"] for run in runs if run["steps"] is not None]
    if len(reached) < len(runs):
        most = max(run["setup"]["settings"]["steps"] for run in runs)
        return f"> {most:,} ({len(reached)} of {len(runs)} runs are faster)"
    if len(reached) < 2:
        return f"{reached[0]:,}"
    found = summarise(reached)
    return f"{found.mean:,.0f} ± {found.sd:,.0f} ({found.n})"
