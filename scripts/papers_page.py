"""Print docs/papers.md: a verdict on each table and figure of the papers, and the command for it.

    python -m scripts.papers_page > docs/papers.md

Numbers come from results/published.yaml, epochs from the recipes' configurations, sizes of small
studies from their files, and what small repetitions found from docs/records.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from highrank_plugins.analysis.statistics import student_t
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.common.formatting import table
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.published import Published, paper_format, read_published
from highrank_plugins.studies.definition import read_study
from highrank_plugins.training import configuration
from scripts.results_pages import cost, scores_of
from scripts.tolerances import tolerance

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"(\w+) et al\. (\d{4})")
GPUS = {"Parthiban": "V100", "Ganea": "P100", "Ott": "V100"}
VERDICTS = "same order", "other order", "not decided", "not run"
HEADINGS = "paper", "tables", *VERDICTS, "hours"
WORST = "other order", "not decided", "same order", "not run"  # which of several verdicts counts
CORPORA = {
    "ptb": "Penn Treebank", "wikitext2": "WikiText-2", "one_billion_word": "One Billion Word",
}  # fmt: skip
SIGNIFICANT = 0.05


published = cache(read_published)


@cache
def papers() -> dict[str, Any]:
    """Return the content of docs/papers.yaml."""
    return read_tree(ROOT / "docs" / "papers.yaml").values


@cache
def training(task: str, conf: str) -> dict[str, Any]:
    """Return the options of a configuration's training."""
    return configuration.load(ROOT / "recipes" / task / "conf" / f"{conf}.yaml").train


def page() -> str:
    """Return the page as Markdown: a table of verdicts, then a fold for each table of a paper."""
    content = papers()
    sections, rows = [], []
    for key, paper in content["papers"].items():
        found = [verdict_of(entry) for entry in paper["tables"]]
        counts = [sum(kind == one for one, _, _ in found) for kind in VERDICTS]
        rows.append([paper["name"], *map(str, (len(found), *counts)), total_hours(paper["tables"])])
        folds = map(partial(fold, key), paper["tables"], found)
        sections.append(f"## {paper['name']}\n\n{''.join(folds)}")
    verdicts = table(HEADINGS, rows)
    return "\n".join(
        [f"{content['top']}\n{verdicts}", content["legend"], *sections, content["bottom"]]
    )


def fold(paper: str, entry: dict[str, Any], found: tuple[str, str, str]) -> str:
    """Return a table or figure: its verdict, under which its numbers and its command unfold."""
    trained = "confs" in entry
    _, verdict, here = found
    command = f"`{loop(entry)}`{entry.get('then', '')}" if trained else entry["command"]
    here = "; ".join(filter(None, [here, times(entry), entry.get("here")]))
    lines = {
        "here": here,
        "studies": ", ".join(map(study, entry.get("studies", []))),
        f"command, {hours(entry).replace(' (', ' hours (')}" if trained else "command": command,
    }
    listed = "\n".join(f"- **{name}:** {text}" for name, text in lines.items() if text)
    title = f"<summary>{entry['number']}, {entry['title']}: {verdict}</summary>"
    return f"<details>{title}\n\n{listed}\n\n{expected(paper, entry).strip()}\n\n</details>\n\n"


def verdict_of(entry: dict[str, Any]) -> tuple[str, str, str]:
    """Return one of VERDICTS, the verdict in words, and what the records of small studies say.

    `order`, or each entry of a list, has the study, the metric, and the systems from the lowest to
    the highest score that the paper prints. Neighbours differ if Student's t-test over seeds gives
    p < 0.05. With `equal` the paper finds no difference. Of several orders, the worst counts.
    """
    orders = entry.get("order", [])
    found = [in_order(one) for one in (orders if isinstance(orders, list) else [orders])]
    verdict = "; ".join(words for words, _ in found) or entry.get("verdict", "not run")
    kind = next((kind for kind in WORST if kind in verdict), "not run")
    return kind, verdict, "; ".join(here for _, here in found)


def in_order(order: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict on one study, and its scores."""
    study, metric, systems = (order[key] for key in ("study", "metric", "systems"))
    runs = {system: scores_of(study, system, metric) for system in systems}
    shown = metric_named(metric).shown
    found = [
        f"{name} {shown(mean(of))}"
        for name, of in sorted(runs.items(), key=lambda one: mean(one[1]))
    ]
    corpus = "Multi30k: " if study.startswith("multi30k") else ""
    tests = [
        (p_value(runs[a], runs[b]), mean(runs[a]) < mean(runs[b])) for a, b in pairwise(systems)
    ]
    smallest, largest = min(p for p, _ in tests), max(p for p, _ in tests)
    if order.get("equal"):
        found_one = smallest < SIGNIFICANT
        words = "other order, the paper finds none" if found_one else "not decided"
        verdict = f"{words}, p = {smallest:.2g}"
    elif any(p < SIGNIFICANT and not rises for p, rises in tests):
        verdict = "other order"
    elif all(p < SIGNIFICANT and rises for p, rises in tests):
        verdict = f"same order, p ≤ {largest:.2g}"
    else:
        verdict = f"not decided, p up to {largest:.2g}"
    return verdict, corpus + ", ".join(found)


def times(entry: dict[str, Any]) -> str:
    """Return times of updates over a softmax's in the same run, from a file of docs/benchmarks."""
    if "timed" not in entry:
        return ""
    file, what, systems = (entry["timed"][key] for key in ("file", "what", "systems"))
    ratios = [f"{name}: {cost(file, system)}" for name, system in systems.items()]
    return f"{what}; {', '.join(ratios)}"


def study(name: str) -> str:
    """Return a study's file and its number of training runs; `ptb/layers` names the file."""
    file = Path("recipes", *name.replace("/", "/studies/").split("/")).with_suffix(".yaml")
    return f"`{file}` ({len(read_study(ROOT / file).members)} runs)"


def p_value(a: list[float], b: list[float]) -> float:
    """Return the p-value of Student's t-test; 0 or 1 for ranks that all seeds share."""
    if len({*a}) == len({*b}) == 1:
        return float(a[0] == b[0])
    return student_t(a, b).p_value


def loop(entry: dict[str, Any]) -> str:
    """Return one command for all configurations of a row."""
    words = [*entry.get("options", []), *(f"--set {change}" for change in entry.get("set", []))]
    changes = "".join(f" {word}" for word in words)
    recipe = f"bash recipes/{entry['task']}/run.sh"
    if "grid" in entry:
        return over_grid(f"{recipe} --conf {entry['confs'][0]}{changes}", entry["grid"])
    if len(entry["confs"]) == 1:
        return f"{recipe} --conf {entry['confs'][0]}{changes}"
    seeds = ""
    if "seeds" in entry:
        seeds = f"for s in $(seq {entry['seeds']}); do "
        changes += " --set seed=$s --name $c-$s"
    each = f"for c in {' '.join(entry['confs'])}; do {recipe} --conf $c{changes}; done"
    return f"{seeds}{each}; done" if seeds else each


def over_grid(command: str, grid: dict[str, list[float]]) -> str:
    """Return loops of a command over values of options; `head_gss_c` has the variable `c`."""
    variables = {option: option.rpartition("_")[2] for option in grid}
    sets = "".join(f" --set {option}=${name}" for option, name in variables.items())
    run = "_".join(f"{name}${{{name}}}" for name in variables.values())
    loops = "".join(
        f"for {variables[option]} in {' '.join(map(str, values))}; do "
        for option, values in grid.items()
    )
    return f"{loops}{command}{sets} --name grid_{run}" + "; done" * len(grid)


def timed(task: str, conf: str) -> tuple[float, str] | None:
    """Return hours of a run and the GPU, where a source times this configuration's layer."""
    train = training(task, conf)
    sizes = ("arch", "head_components", "decoder_embed_dim", "decoder_hidden_size")
    for gpu_of, gpu in GPUS.items():
        for entry in published(task):
            if not entry.source.startswith(gpu_of):
                continue
            if entry.conf == conf and "hours × GPUs" in entry.cells:
                return entry.cells["hours × GPUs"], gpu
            known = training(task, entry.conf or "") if "s/epoch" in entry.cells else {}
            if known and all(known.get(size) == train.get(size) for size in sizes):
                return float(train["max_epoch"]) * entry.cells["s/epoch"] / 3600, gpu
    return None


def estimated(task: str, conf: str) -> tuple[float, str] | None:
    """Return hours of a run that no source times, by `untimed` of docs/papers.yaml.

    They are the hours of the run `like`, times the ratios of `words`, `parameters`, `time`, epochs
    or updates, and of the printed times of `update`. With `batch`, a source times the run's own.
    """
    patterns = papers()["untimed"]
    entry = next((patterns[key] for key in patterns if fnmatchcase(f"{task}/{conf}", key)), None)
    if entry is None:
        return None
    train = training(task, conf)
    kind = entry.get("update", "ms/batch (network)")
    update = {e.conf: e.cells[kind] for e in published(task) if kind in e.cells}
    if "batch" in entry:
        batches = entry["words"] * length(train) / entry["batch"]
        return batches * update[conf] / 1000 / 3600, entry["gpu"]
    other_task, _, other_conf = entry["like"].partition("/")
    found = timed(other_task, other_conf) or estimated(other_task, other_conf)
    if found is None:
        raise ValueError(f"docs/papers.yaml: untimed: no source times {entry['like']}")
    ratio = length(train) / length(training(other_task, other_conf))
    if "update" in entry:
        ratio *= update[conf] / update[other_conf]
    for kind in ("words", "parameters", "time"):
        own, other = entry.get(kind, (1, 1))
        ratio *= own / other
    return found[0] * ratio, found[1]


def length(train: dict[str, Any]) -> float:
    """Return the epochs of a training run, or its updates."""
    return float(train.get("max_epoch") or train["max_update"])


def hours(entry: dict[str, Any]) -> str:
    """Return the hours of all training runs of a row, and the GPU."""
    task, confs = entry["task"], entry["confs"]
    found = [run_hours(task, conf) for conf in confs]
    mark = "" if all(timed(task, conf) for conf in confs) else "≈ "
    total = sum(time for time, _ in found) * runs(entry)
    return f"{mark}{total:,.0f} ({', '.join(sorted({gpu for _, gpu in found}))})"


def run_hours(task: str, conf: str) -> tuple[float, str]:
    found = timed(task, conf) or estimated(task, conf)
    if found is None:
        raise ValueError(f"docs/papers.yaml: no source times {task}/{conf}; add it to `untimed`")
    return found


def runs(entry: dict[str, Any]) -> int:
    """Return the number of training runs of each configuration of a row."""
    return int(entry.get("seeds", 1) * prod(map(len, entry.get("grid", {}).values())))


def total_hours(rows: Sequence[dict[str, Any]]) -> str:
    """Return the hours of a paper's training runs; rows that differ in measures share theirs."""
    most: dict[tuple[str, str, bool], int] = {}
    for entry in rows:
        for conf in entry.get("confs", []):
            run = (entry["task"], conf, "grid" in entry)
            most[run] = max(most.get(run, 0), runs(entry))
    return f"{sum(run_hours(task, conf)[0] * n for (task, conf, _), n in most.items()):,.0f}"


def expected(paper: str, row: dict[str, Any]) -> str:
    """Return the published scores of a row, as a table of systems and kinds of score."""
    if "expected" in row:
        return f"Published: {row['expected']}."
    tasks = {row["task"]: ""} if "task" in row else CORPORA
    kinds = [*row.get("kinds", []), *row.get("cells", [])]
    found: dict[str, dict[str, str]] = {}
    for task, corpus in tasks.items():
        for entry, kind in printed_cells(paper, row, task):
            system = f"{corpus}: {entry.system}" if corpus else entry.system
            found.setdefault(system, {})[kind] = score(published(task), entry, kind)
    if not found:
        raise ValueError(f"docs/papers.yaml: {paper}, {row['number']}: no published score")
    cells = ([system, *(of.get(kind, "–") for kind in kinds)] for system, of in found.items())
    return table(["published", *kinds], cells)


def score(entries: Sequence[Published], entry: Published, kind: str) -> str:
    """Return a published number with its tolerance and its erratum."""
    form = paper_format(kind)
    text = f"{(entry.scores | entry.cells)[kind]:{form}}"
    if limit := tolerance(entries, entry, kind):  # that of an exact number is 0
        text += f" ± {limit:{'.2g' if kind in entry.cells else form}}"
    if kind in entry.cells and kind in entry.errata:
        text += f" ({entry.errata[kind]})"
    return text


def printed_cells(paper: str, row: dict[str, Any], task: str) -> Iterator[tuple[Published, str]]:
    """Yield the systems that a row's table prints, each with a kind of score or a cell."""
    named = row.get("table", row["number"])
    where = {named} if isinstance(named, str) else {*named}
    for entry in published(task):
        for kind in [*row.get("kinds", []), *row.get("cells", [])]:
            tables = [re.sub(r" of Yang et al\. \d+$", "", name) for name in entry.tables_of(kind)]
            known = kind in entry.scores or kind in entry.cells
            if known and where & {*tables} and paper_of(entry) == paper:
                yield entry, kind


def paper_of(entry: Published) -> str:
    """Return the key of the paper that prints an entry's table."""
    printed = entry.table if "et al." in entry.table else entry.source
    name, year = SOURCE.findall(printed)[-1]
    return f"{name.lower()}{year}"


if __name__ == "__main__":
    print(page(), end="")
