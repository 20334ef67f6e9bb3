"""Run SpamLang for layers × vocabularies × widths × seeds, and summarise the runs in a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from highrank_plugins.analysis.multimode import heads_named
from highrank_plugins.analysis.significance import holm, student_t, summarise
from highrank_plugins.analysis.spamlang import GOAL, SpamLangSettings, spamlang
from highrank_plugins.common.formatting import table
from highrank_plugins.heads import head_options

SpamLangRecord = dict[str, Any]
_Case = tuple[int, int, str]  # M, d and layer
_HEADINGS = [
    "M", "d", "layer", f"steps to {GOAL:.0%}", "p (Holm)", "correct at the end",
    "retention at contexts", "at features", "at contexts, half learnt", "at features, half learnt",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SpamLangGrid:
    """Hold the values to vary, and the settings of all runs.

    Attributes:
        heads: see `heads_named`. backward_ranks: r of controls, which are softmaxes.
        context_scale: of the mixtures' contexts.
    """

    heads: Sequence[str]
    classes: Sequence[int]
    dims: Sequence[int]
    seeds: Sequence[int]
    backward_ranks: Sequence[int] = ()
    components: int | None = None
    context_scale: float = 1.0
    steps: int = 4000
    lr: float = 1e-2

    def cases(self) -> Iterator[tuple[SpamLangRecord, dict[str, Any], SpamLangSettings]]:
        """Yield the key of each run, with the layer's options and the settings.

        Raises:
            ValueError: an unknown layer.
        """
        layers = {
            self._label(name, options): (self._scaled(options), None)
            for name, options in heads_named(self.heads, self.components).items()
        }
        for classes, dim in itertools.product(self.classes, self.dims):
            controls = {
                f"softmax, gradient of rank {rank}": ({"name": "softmax"}, rank)
                for rank in self.backward_ranks
                if rank < dim
            }
            for label, (options, rank) in (layers | controls).items():
                for seed in self.seeds:
                    settings = SpamLangSettings(
                        classes=classes, dim=dim, backward_rank=rank,
                        steps=self.steps, lr=self.lr, seed=seed,
                    )  # fmt: skip
                    key = {"classes": classes, "dim": dim, "layer": label, "seed": seed}
                    yield key, options, settings

    def _scaled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        has_contexts = "context_scale" in head_options(options["name"])
        return dict(options) | ({"context_scale": self.context_scale} if has_contexts else {})

    def _label(self, name: str, options: Mapping[str, Any]) -> str:
        if self.context_scale == 1 or "context_scale" not in head_options(options["name"]):
            return name
        return f"{name}, contexts × {self.context_scale:g}"


def run_grid(
    grid: SpamLangGrid,
    done: Sequence[SpamLangRecord],
    save: Callable[[list[SpamLangRecord]], None],
    say: Callable[[str], None],
) -> list[SpamLangRecord]:
    """Return all runs of a grid; those in `done` are not repeated.

    Args:
        done: runs of an earlier call, also of other grids.
        save: receives all runs whenever one ends.
        say: receives a line for each run.
    """
    runs = list(done)
    for key, options, settings in grid.cases():
        setup = {"options": options, "settings": asdict(settings)}
        if any(run["setup"] == setup for run in runs):
            continue
        found = asdict(spamlang(options, settings))
        runs.append(key | found | {"setup": setup})
        steps = found["steps"] or f"more than {settings.steps}"
        say(f"{key['layer']}, M = {key['classes']}, d = {key['dim']}, seed {key['seed']}: {steps}")
        save(runs)
    return runs


def grid_table(runs: Sequence[SpamLangRecord]) -> str:
    """Return a row for each vocabulary, width and layer, over its seeds, in Markdown.

    A layer is compared with the softmax of the same vocabulary and width if all runs of both have
    reached the goal.
    """
    groups: dict[_Case, list[SpamLangRecord]] = {}
    for run in runs:
        groups.setdefault((run["classes"], run["dim"], run["layer"]), []).append(run)
    p_values = _p_values(groups)
    rows = []
    for case, group in sorted(groups.items(), key=lambda item: item[0][:2]):
        classes, dim, layer = case
        shares = [f"{_mean(group, name):.3f}" for name in ("contexts", "features")]
        shares += [f"{_mean(group, f'{name}_half'):.3f}" for name in ("contexts", "features")]
        p_value = f"{p_values[case]:.2g}" if case in p_values else "–"
        correct = f"{_mean(group, 'accuracy'):.1%}"
        rows.append([f"{classes:,}", str(dim), layer, _steps(group), p_value, correct, *shares])
    note = (
        "p: Student's unpaired two-sided t-test of the steps against the softmax with the same M "
        f"and d, adjusted for {len(p_values)} comparisons (Holm)."
    )
    return table(_HEADINGS, rows) + (f"\n{note}\n" if p_values else "")


def _p_values(groups: Mapping[_Case, Sequence[SpamLangRecord]]) -> dict[_Case, float]:
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
