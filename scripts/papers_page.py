"""Print docs/papers.md: a row for each table and figure of the papers, with the command for it.

    python scripts/papers_page.py > docs/papers.md

Numbers come from results/published.yaml, epochs from the recipes' configurations, sizes of small
studies from their files, and what small repetitions found from docs/records.
"""

import csv
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from highrank_plugins.analysis.statistics import student_t
from highrank_plugins.common.formatting import table
from highrank_plugins.common.yaml_tree import read_tree
from highrank_plugins.results.published import Published, paper_format, read_published, tolerance
from highrank_plugins.studies.definition import read_study
from highrank_plugins.training import configuration

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"(\w+) et al\. (\d{4})")
GPUS = {"Parthiban": "V100", "Ganea": "P100", "Ott": "V100"}
KEYS = {
    "number", "title", "task", "confs", "options", "set", "seeds", "command", "kinds", "cells",
    "expected", "here", "verdict", "table", "order", "studies", "grid", "then", "timed",
}  # fmt: skip
HEADINGS = (
    "table", "content", "command", "hours", "expected", "at a small scale", "small study",
    "verdict",
)  # fmt: skip
NOT_RUN = "not run"
CORPORA = {
    "ptb": "Penn Treebank", "wikitext2": "WikiText-2", "one_billion_word": "One Billion Word",
}  # fmt: skip
NAMES = {
    "mos": "MoS", "moc": "MoC", "mixtape": "Mixtape", "plif": "PLIF", "gss": "GSS",
    "sigsoftmax": "SigSoftmax", "mos_scaled": "MoS, scale 4", "mos_plif": "MoS with PLIF",
    "mixtape_scaled": "Mixtape, scale 4", "mixtape_r0.1": "Mixtape with r = 0.1",
    "mos_sigsoftmax": "mixture of SigSoftmax", "mixtape_r1": "Mixtape with gates for all words",
    **{f"mos_k{k}": f"MoS with K = {k}" for k in (2, 5, 10, 15)},
    **{f"mos_dropoutl{p}": f"MoS with dropout {p}" for p in ("0", "0.05", "0.1", "0.2", "0.3")},
}  # fmt: skip
SIGNIFICANT, PER_UPDATE = 0.05, ("ms/batch (network)", "s/100 batches (network)")
GPU_HOURS = "hours × GPUs"
FORMS = {"test_perplexity": ".2f", "test_kld": ".2f", "sacrebleu": ".2f"}


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
    """Return the page as Markdown."""
    content = papers()
    parts = [content["top"]]
    for key, paper in content["papers"].items():
        rows = [row(key, entry) for entry in paper["tables"]]
        parts.append(f"## {paper['name']}\n\n{table(HEADINGS, rows)}")
    return "\n".join([*parts, content["bottom"]])


def row(paper: str, entry: dict[str, Any]) -> list[str]:
    """Return the cells of a table or figure."""
    unknown = entry.keys() - KEYS
    if unknown:
        raise ValueError(f"docs/papers.yaml: {entry['number']}: unknown key {sorted(unknown)}")
    trained = "confs" in entry
    here, verdict = small_scale(entry)
    command = f"`{loop(entry)}`{entry.get('then', '')}" if trained else entry["command"]
    return [
        entry["number"],
        entry["title"],
        command,
        hours(entry) if trained else "–",
        expected(paper, entry),
        "; ".join(filter(None, [here, times(entry), entry.get("here")])) or "–",
        ", ".join(map(study, entry.get("studies", []))) or "–",
        verdict or entry.get("verdict", NOT_RUN if trained else "–"),
    ]


def small_scale(entry: dict[str, Any]) -> tuple[str, str]:
    """Return what the records of small studies say, and whether their order is the paper's.

    `order`, or each entry of a list, has the study, the metric, and the systems from the lowest to
    the highest score that the paper prints. Neighbours differ if Student's t-test over seeds gives
    p < 0.05. With `equal` the paper finds no difference.
    """
    orders = entry.get("order", [])
    found = [in_order(one) for one in (orders if isinstance(orders, list) else [orders])]
    return "; ".join(here for here, _ in found), "; ".join(verdict for _, verdict in found)


def in_order(order: dict[str, Any]) -> tuple[str, str]:
    """Return the scores of one study, and its verdict."""
    study, metric, systems = (order[key] for key in ("study", "metric", "systems"))
    runs = {system: scores_of(study, system, metric) for system in systems}
    form = FORMS.get(metric, ",.0f")
    shown = sorted(systems, key=lambda system: mean(runs[system]))
    found = [f"{NAMES.get(name, name)} {mean(runs[name]):{form}}" for name in shown]
    corpus = "Multi30k: " if study.startswith("multi30k") else ""
    tests = [
        (p_value(runs[a], runs[b]), mean(runs[a]) < mean(runs[b])) for a, b in pairwise(systems)
    ]
    smallest = min(p for p, _ in tests)
    if order.get("equal"):
        found_one = smallest < SIGNIFICANT
        verdict = f"{'a difference' if found_one else 'not decided'}, p = {smallest:.2g}"
    elif any(p < SIGNIFICANT and not rises for p, rises in tests):
        verdict = "other order"
    elif all(p < SIGNIFICANT and rises for p, rises in tests):
        verdict = f"same order, p ≤ {max(p for p, _ in tests):.2g}"
    else:
        verdict = f"not decided, p up to {max(p for p, _ in tests):.2g}"
    return corpus + ", ".join(found), verdict


def times(entry: dict[str, Any]) -> str:
    """Return measured times of updates over those of a softmax.

    `timed` has the CSV file of docs/benchmarks, what it measured, and the implementation of each
    system. The times are those of a softmax in the same run.
    """
    if "timed" not in entry:
        return ""
    with (ROOT / "docs" / "benchmarks" / entry["timed"]["file"]).open(encoding="utf-8") as file:
        found = {row["implementation"]: float(row["over_baseline"]) for row in csv.DictReader(file)}
    systems = entry["timed"]["systems"]
    ratios = [f"{name}: {found[system]:.2f}" for name, system in systems.items()]
    return f"{entry['timed']['what']}; {', '.join(ratios)}"


def study(name: str) -> str:
    """Return a study's file and its number of training runs.

    Args:
        name: `ptb/layers` for recipes/ptb/studies/layers.yaml.
    """
    task, _, stem = name.partition("/")
    file = Path("recipes", task, "studies", f"{stem}.yaml")
    return f"`{file}` ({len(read_study(ROOT / file).members)} runs)"


def p_value(a: list[float], b: list[float]) -> float:
    """Return the p-value of Student's t-test; 0 or 1 for ranks that all seeds share."""
    if len({*a}) == len({*b}) == 1:
        return float(a[0] == b[0])
    return student_t(a, b).p_value


def scores_of(study: str, system: str, metric: str) -> list[float]:
    """Return a metric of all seeds of a system.

    Raises:
        ValueError: the study has fewer than two records of it.
    """
    paths = sorted((ROOT / "docs" / "records" / study).glob(f"{system}-[0-9]*.json"))
    if len(paths) < 2:
        raise ValueError(f"docs/records/{study}: fewer than two records of {system}")
    return [json.loads(path.read_text(encoding="utf-8"))["metrics"][metric] for path in paths]


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
            if entry.conf == conf and GPU_HOURS in entry.cells:
                return entry.cells[GPU_HOURS], gpu
            known = training(task, entry.conf or "") if "s/epoch" in entry.cells else {}
            if known and all(known.get(size) == train.get(size) for size in sizes):
                return float(train["max_epoch"]) * entry.cells["s/epoch"] / 3600, gpu
    return None


def estimated(task: str, conf: str) -> tuple[float, str] | None:
    """Return hours of a run, scaled from those of another run.

    The factor is the ratio of their updates' times, where Yang et al. 2019 print both and batches
    are equal, or what `untimed` of docs/papers.yaml says.
    """
    return by_updates(task, conf) or by_size(task, conf)


def by_updates(task: str, conf: str) -> tuple[float, str] | None:
    """Return hours of a run, from a run with known hours and the times of updates of both."""
    train = training(task, conf)
    for kind in PER_UPDATE:
        update = {e.conf: e.cells[kind] for e in published(task) if kind in e.cells}
        for other in filter(None, update):
            if conf not in update or conf == other:
                continue
            same = training(task, other)
            found = timed(task, other) or by_size(task, other)
            if found and same.get("batch_size") == train.get("batch_size"):
                ratio = update[conf] / update[other] * length(train) / length(same)
                return found[0] * ratio, found[1]
    return None


def by_size(task: str, conf: str) -> tuple[float, str] | None:
    """Return hours of a run by what it reads, as `untimed` of docs/papers.yaml says.

    They are those of the run `like`, times the ratios of `words`, `parameters`, `time` and of the
    epochs or updates; or those of its batches, which a source times.
    """
    patterns = papers()["untimed"]
    entry = next((patterns[key] for key in patterns if fnmatchcase(f"{task}/{conf}", key)), None)
    if entry is None:
        return None
    train = training(task, conf)
    if "batch" in entry:
        kind = PER_UPDATE[0]
        update = next(e.cells[kind] for e in published(task) if e.conf == conf and kind in e.cells)
        batches = entry["words"] * length(train) / entry["batch"]
        return batches * update / 1000 / 3600, entry["gpu"]
    other_task, _, other_conf = entry["like"].partition("/")
    found = timed(other_task, other_conf)
    if found is None:
        raise ValueError(f"docs/papers.yaml: untimed: no source times {entry['like']}")
    ratio = length(train) / length(training(other_task, other_conf))
    for kind in ("words", "parameters", "time"):
        own, other = entry.get(kind, (1, 1))
        ratio *= own / other
    return found[0] * ratio, found[1]


def length(train: dict[str, Any]) -> float:
    """Return the epochs of a training run, or its updates."""
    return float(train.get("max_epoch") or train["max_update"])


def hours(entry: dict[str, Any]) -> str:
    """Return the hours of all training runs of a row, and the GPU.

    Raises:
        ValueError: the hours of a run follow from nothing.
    """
    task, confs = entry["task"], entry["confs"]
    printed = [timed(task, conf) for conf in confs]
    found = [time or estimated(task, conf) for time, conf in zip(printed, confs, strict=True)]
    if None in found:
        conf = confs[found.index(None)]
        raise ValueError(f"docs/papers.yaml: no source times {task}/{conf}; add it to `untimed`")
    mark = "" if all(printed) else "≈ "
    runs = entry.get("seeds", 1) * prod(map(len, entry.get("grid", {}).values()))
    total = sum(time for time, _ in filter(None, found)) * runs
    return f"{mark}{total:,.0f} ({', '.join(sorted({gpu for _, gpu in filter(None, found)}))})"


def expected(paper: str, row: dict[str, Any]) -> str:
    """Return the published scores of a row."""
    if "expected" in row:
        return str(row["expected"])
    if "task" in row:
        found = "; ".join(scores(paper, row, row["task"]))
    else:
        of_corpora = {name: "; ".join(scores(paper, row, task)) for task, name in CORPORA.items()}
        found = ". ".join(f"{name}: {text}" for name, text in of_corpora.items() if text)
    if not found:
        raise ValueError(f"docs/papers.yaml: {paper}, {row['number']}: no published score")
    return found


def scores(paper: str, row: dict[str, Any], task: str) -> Iterator[str]:
    entries = published(task)
    several = len(row.get("kinds", [])) > 1 or "cells" in row
    for entry, kind in printed_cells(paper, row, task):
        name = f"{entry.system}, {kind}" if several else entry.system
        form = paper_format(kind)
        text = f"{name}: {(entry.scores | entry.cells)[kind]:{form}}"
        if limit := tolerance(entries, entry, kind):  # that of an exact number is 0
            text += f" ± {limit:{'.2g' if kind in entry.cells else form}}"
        if kind in entry.cells and kind in entry.errata:
            text += f" ({entry.errata[kind]})"
        yield text


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
