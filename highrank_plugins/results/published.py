"""Show the papers' scores next to ours, with a column for each kind of score."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.common import formatting
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.yaml_tree import read_tree

FILE = Path(__file__).with_suffix(".yaml")
# kind of score → name of the metric in our records, where we compute it, and its format
KINDS: dict[str, tuple[str | None, str]] = {
    "sacrebleu": ("sacrebleu", ".1f"),
    "tokenised": ("bleu_tokenised", ".1f"),
    "compound_split": ("bleu_compound_split", ".1f"),
    "unstated": (None, ".1f"),
    "valid ppl": ("valid_perplexity", ".2f"),
    "test ppl": ("test_perplexity", ".2f"),
    "test ppl (cache)": ("test_cache_perplexity", ".2f"),
    "test ppl (dynamic)": ("test_dynamic_perplexity", ".2f"),
    "rank": ("test_rank", ",.0f"),
    "valid bits": ("valid_bits", ".2f"),
    "test bits": ("test_bits", ".2f"),
    "BLEU-4 precision": ("bleu4_precision", ".3f"),
    "BLEU-4 recall": ("bleu4_recall", ".3f"),
}


class Published(BaseModel):
    """Hold one system of one paper: its scores by kind, and their deviations over seeds.

    Attributes:
        conf: the recipe's configuration that repeats it.
        parameters: of the model, where the paper states them or they follow from its sizes.
        seeds: number of runs that the deviations are of.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    source: str
    scores: dict[str, float]
    deviations: dict[str, float] = {}
    conf: str | None = None
    parameters: float | None = None
    seeds: int = 1


def read_published(task: str) -> list[Published]:
    """Return what papers report for a task, the name of its recipe.

    Raises:
        ValueError: nothing is known of it; names the nearest.
    """
    tasks = read_tree(FILE).values
    if task not in tasks:
        raise ValueError(f"no published scores of {task!r}{did_you_mean(task, list(tasks))}")
    return [Published.model_validate(entry) for entry in tasks[task]]


def table(task: str, ours: Mapping[str, Mapping[str, float]]) -> str:
    """Return Markdown: a row for each system, ours first, and a column for each kind of score.

    Args:
        ours: name of a run → its metrics, as in its record.
    """
    theirs = read_published(task)
    known = {kind for entry in theirs for kind in entry.scores}
    known |= {kind for kind in KINDS for metrics in ours.values() if KINDS[kind][0] in metrics}
    kinds = [kind for kind in KINDS if kind in known]
    rows = [
        (name, [_cell(kind, metrics.get(KINDS[kind][0] or "")) for kind in kinds], "this run")
        for name, metrics in ours.items()
    ]
    rows += [
        (
            entry.system,
            [_cell(kind, entry.scores.get(kind), entry.deviations.get(kind)) for kind in kinds],
            entry.source,
        )
        for entry in theirs
    ]
    headings = ["system", *kinds, "source"]
    return formatting.table(headings, [[system, *cells, source] for system, cells, source in rows])


def _cell(kind: str, value: float | None, deviation: float | None = None) -> str:
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{KINDS[kind][1]}}" for number in numbers)
