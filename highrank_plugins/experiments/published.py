"""The papers' scores beside ours, each kind of BLEU in a column of its own."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.experiments.nearest import did_you_mean
from highrank_plugins.experiments.yaml_tree import read_tree

FILE = Path(__file__).with_suffix(".yaml")
# kind of score → name of the metric in our records, where we compute it
KINDS = {
    "sacrebleu": "sacrebleu",
    "tokenised": "bleu_tokenised",
    "compound_split": "bleu_compound_split",
    "unstated": None,
}


class Published(BaseModel):
    """One system of one paper: its scores by kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    source: str
    scores: dict[str, float]


def read_published(task: str) -> list[Published]:
    """What papers report for a task, the name of its recipe.

    Raises:
        ValueError: nothing is known of it; names the nearest.
    """
    tasks = read_tree(FILE).values
    if task not in tasks:
        raise ValueError(f"no published scores of {task!r}{did_you_mean(task, list(tasks))}")
    return [Published.model_validate(entry) for entry in tasks[task]]


def table(task: str, ours: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: a row for each system, ours first, and a column for each kind that somebody has.

    Args:
        ours: name of a run → its metrics, as in its record.
    """
    rows = [
        (name, "this run", {kind: metrics.get(metric or "") for kind, metric in KINDS.items()})
        for name, metrics in ours.items()
    ]
    rows += [(entry.system, entry.source, dict(entry.scores)) for entry in read_published(task)]
    kinds = [kind for kind in KINDS if any(scores.get(kind) is not None for *_, scores in rows)]
    lines = [f"| {' | '.join(['system', *kinds, 'source'])} |", f"|{'---|' * (len(kinds) + 2)}"]
    for system, source, scores in rows:
        cells = [_cell(scores.get(kind)) for kind in kinds]
        lines.append(f"| {' | '.join([system, *cells, source])} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
