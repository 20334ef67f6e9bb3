"""Show the papers' scores next to ours."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.perplexity import BEFORE

FILE = Path(__file__).with_suffix(".yaml")
PARAMETERS = "parameters"
SIMILARITY = "similarity_"
# files of word pairs, as Faruqui and Dyer distribute them → their names in Parthiban et al. 2021
BENCHMARKS = {
    "EN-WS-353-ALL": "WS-353",
    "EN-WS-353-SIM": "WS-SIM",
    "EN-WS-353-REL": "WS-REL",
    "EN-RG-65": "RG-65",
    "EN-MC-30": "MC-30",
    "EN-MTurk-287": "MTurk-287",
    "EN-MTurk-771": "MTurk-771",
    "EN-MEN-TR-3k": "MEN",
    "EN-YP-130": "YP-130",
    "EN-VERB-143": "VERB-143",
    "EN-RW-STANFORD": "RW",
    "EN-SimVerb-3500": "SimVerb",
    "EN-SIMLEX-999": "SimLex",
}
# the last sentence of the table
CLAIM = (
    "What can be claimed: not which system is better. Perplexities compare over one text and "
    "vocabulary only; `highrank compare --paper` tests the numbers that compare."
)
SIZES_DIFFER = 0.01  # sizes of models that are rounded in print, relative


class Published(BaseModel):
    """Hold one system of one source: its scores by kind, and where each is printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    source: str
    table: str  # the table or figure with the scores and cells
    scores: dict[str, float] = {}
    deviations: dict[str, float] = {}  # standard deviations of scores over seeds
    conf: str | None = None  # the recipe's configuration that repeats the training run
    parameters: float | None = None  # stated by the source, or following from its sizes
    seeds: int = 1  # number of runs behind the deviations
    elsewhere: dict[str, str] = {}  # kind or cell → another table that prints it
    also: list[str] = []  # further tables that print the scores again
    cells: dict[str, float] = {}  # what our records lack: times, slowdowns, p-values, slopes
    similarity: dict[str, float] = {}  # benchmark of word similarity → Spearman's ρ
    contexts: dict[str, list[int]] = {}  # who chose them → those with the next word in the top 5
    errata: dict[str, str] = {}  # kind or cell → what is wrong or uncertain in it

    def tables_of(self, kind: str) -> list[str]:
        also = self.also if kind in self.scores else []
        return [self.elsewhere.get(kind, self.table), *also]


def read_published(task: str) -> list[Published]:
    tasks = read_tree(FILE).values
    if task not in tasks:
        near = did_you_mean(task, list(tasks)) or f"; known tasks: {', '.join(tasks)}"
        raise ValueError(f"no published scores of {task!r}{near}")
    return [Published.model_validate(entry) for entry in tasks[task]]


def paper_format(kind: str) -> str:
    known = KINDS.get(kind)
    return ".4g" if known is None else known.printed or known.format


def published_rows(
    task: str, ours: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings (a kind of score each), a row for each system, ours first, and notes."""
    own = [(name, _of_run(metrics), "this run") for name, metrics in _checkpoints(ours)]
    theirs = [(entry.system, _of_entry(entry), entry.source) for entry in read_published(task)]
    measured = {column for _, cells, _ in own for column in cells}
    published = dict.fromkeys(column for _, cells, _ in theirs for column in cells)
    always = {kind for kind, metric in KINDS.items() if not metric.detail}
    details = {*KINDS, PARAMETERS, *(f"{SIMILARITY}{name}" for name in BENCHMARKS.values())}
    known = published.keys() | (measured & always)
    names = dict.fromkeys([*KINDS, PARAMETERS, *published])
    columns = [name for name in names if name in known & (always | (measured & details))]
    rows = [
        [name, *(cells.get(column, "") for column in columns), source]
        for name, cells, source in [*own, *theirs]
        if not cells.keys().isdisjoint(columns)
    ]
    return ["system", *columns, "source"], rows, [CLAIM]


def _checkpoints(
    ours: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield each run, after its checkpoint before finetuning if it was finetuned."""
    for name, metrics in ours.items():
        first = {
            metric.removesuffix(BEFORE): value
            for metric, value in metrics.items()
            if metric.endswith(BEFORE)
        }
        if first:
            yield f"{name}, before finetuning", first
        yield name, metrics


def _of_run(metrics: Mapping[str, float]) -> dict[str, str]:
    columns = {metric.name: kind for kind, metric in KINDS.items() if metric.name}
    columns |= {f"{SIMILARITY}{file}": f"{SIMILARITY}{name}" for file, name in BENCHMARKS.items()}
    named = {columns.get(metric, metric): value for metric, value in metrics.items()}
    return {name: _cell(name, value) for name, value in named.items()}


def _of_entry(entry: Published) -> dict[str, str]:
    cells = {kind: _cell(kind, of, entry.deviations.get(kind)) for kind, of in entry.scores.items()}
    if entry.parameters is not None:
        cells[PARAMETERS] = _cell(PARAMETERS, entry.parameters)
    similar = {f"{SIMILARITY}{name}": rho for name, rho in entry.similarity.items()}
    return cells | {name: _cell(name, rho) for name, rho in similar.items()}


def _cell(kind: str, value: float, deviation: float | None = None) -> str:
    special = ".4f" if kind.startswith(SIMILARITY) else ",.0f" if kind == PARAMETERS else ""
    form = special or paper_format(kind)
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{form}}" for number in numbers)
