"""Write docs/results.md and docs/results/: python -m scripts.results_pages.

Texts are those of docs/results.yaml, numbers and figures are computed from docs/records and
docs/benchmarks.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from highrank_plugins.analysis.statistics import (
    Summary,
    confidence_interval,
    holm,
    pearson,
    summarise,
)
from highrank_plugins.common import formatting
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.reports.comparisons import claim, comparison_tables, runs_table
from highrank_plugins.reports.plots import colour_of
from highrank_plugins.reports.tables import Table, brief, to_markdown
from highrank_plugins.results.comparison import Compared, ComparedSystem, compare_records
from highrank_plugins.results.doubts import doubts
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.results_table import RecordedRun
from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.ladder_table import judge, of_records
from recipes.synthetic.spamlang_grid import grid_table

DOCS = Path(__file__).parents[1] / "docs"
SIZES = (
    "All runs are small, on CPUs, with three seeds. The papers' sizes have not been run, but for "
    "[first epochs](results/ptb_first_epochs.md)."
)
IMPROVING = "In each row the validation loss of most seeds still fell at the last epoch."
RANK = "test_rank"
UNDECIDED = "no difference shown"
GREY = "#999999"
MEASURES = {
    "rank": "test_rank", "ε-rank, 1e-4": "test_effective_rank_0.0001",
    "retention": "test_retention", "KLD": "test_kld",
}  # fmt: skip


class Gain(NamedTuple):
    """Hold a row of a figure: a gain over the softmax, in percent of its score, with its ends."""

    label: str
    colour: str
    middle: float
    low: float
    high: float


@cache
def study(name: str, *columns: str) -> Compared:
    """Return the comparison of a study's records, with these metrics beside the tested one."""
    return compare_records(sorted((DOCS / "records" / name).glob("*.json")), columns=columns)


def system(name: str, of: str) -> ComparedSystem:
    """Return a system of a study, or of another one: STUDY/SYSTEM."""
    where, _, own = of.rpartition("/")
    for one in study(where or name).systems:
        if one.name == own:
            return one
    raise ValueError(f"docs/records/{where or name}: no records of {own!r}")


def scores_of(name: str, of: str, metric: str) -> list[float]:
    """Return a metric of all seeds of a system."""
    values = system(name, of).values(metric)
    if not values:
        raise ValueError(f"docs/records/{name}: {of!r} has no {metric}")
    return values


def filled(name: str, text: str) -> str:
    """Return a text with the numbers of a study in place of {A}, {A - B} and {A: METRIC}."""

    def number(found: re.Match[str]) -> str:
        one, other, metric = found.groups()
        of = metric_named(metric or study(name).metric)
        values = scores_of(name, one, of.name)
        if other is None:
            return of.shown(mean(values))
        own, base = summarise(values), summarise(scores_of(name, other, of.name))
        low, high = map(of.shown, confidence_interval(own, base, True))
        return f"{own.mean - base.mean:+{of.format}} [{low}, {high}]"

    return re.sub(r"\{([\w./]+)(?: - ([\w./]+))?(?:: ([\w.]+))?\}", number, text)


def gain_of(name: str, one: ComparedSystem, label: str) -> Gain:
    """Return the gain of a tested system: positive if it is better than the softmax."""
    compared, test = study(name), one.comparison
    base = system(name, str(compared.baseline)).summary(compared.metric)
    assert test is not None and isinstance(base, Summary)
    sign = metric_named(compared.metric).better * 100 / base.mean
    low, high = sorted(sign * end for end in test.interval)
    colour = GREY if low <= 0 <= high else colour_of(one.name)
    return Gain(label, colour, sign * test.difference, low, high)


def forest(gains: Sequence[Gain]) -> str:
    """Draw a row for each gain with its interval, as SVG: worse on the left, better on the right.

    A gain is grey if its interval contains 0. The figure is narrow, to be read on a phone.
    """
    left, width, row = 10, 380, 42
    ends = [end for gain in gains for end in (gain.low, gain.high, 0.0)]
    low, high = min(ends), max(ends)
    scale = width / (high - low)
    bottom = row * len(gains) + 12

    def x(value: float) -> float:
        return round(left + (value - low) * scale, 1)

    def text(at: float, y: float, anchor: str, words: str) -> str:
        return f'<text x="{at}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'

    whole = left + width + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {bottom + 30}" '
        f'width="{whole}" font-family="sans-serif" font-size="13" fill="#1f2933">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="4" y2="{bottom - 6}" stroke="#4d4d4d"/>',
    ]
    for number, gain in enumerate(gains):
        y = row * (number + 1) - 8
        lines += [
            text(left, y - 12, "start", gain.label),
            f'<line x1="{x(gain.low)}" x2="{x(gain.high)}" y1="{y}" y2="{y}" '
            f'stroke="{gain.colour}" stroke-width="3"/>',
            f'<circle cx="{x(gain.middle)}" cy="{y}" r="5" fill="{gain.colour}"/>',
            text(left + width, y - 12, "end", f"{gain.middle:+.1f} %"),
        ]
    lines.append(text(x(0), bottom + 14, "middle", "worse ← softmax → better, 95 % interval"))
    return "\n".join([*lines, "</svg>", ""])


def first_page(texts: Mapping[str, Any], pages: dict[str, str]) -> str:
    """Return the first page; its figure is added to `pages`."""
    rows, gains, ended = [], [], False
    for row in texts["rows"]:
        one = system(row["study"], row["system"])
        compared, test = study(row["study"]), one.comparison
        assert test is not None
        metric = metric_named(compared.metric)
        base = system(row["study"], str(compared.baseline)).summary(metric.name)
        assert isinstance(base, Summary)
        low, high = map(metric.shown, test.interval)
        sure = f"p = {test.holm:.2g}" if test.holm < compared.alpha else UNDECIDED
        cells = [
            row.get("train", "the same"),
            row["take"],
            f"{test.difference:+{metric.format}} {metric.title} of {metric.shown(base.mean)} "
            f"[{low}, {high}]",
            sure,
            cost(*row["cost"]) if "cost" in row else "–",
        ]
        rows.append(cells)
        ended = ended or 2 * sum(map(is_improving, one.runs)) <= len(one.runs)
        gains.append(gain_of(row["study"], one, row["label"]))
    pages["images/gains.svg"] = forest(gains)
    headings = ["you train", "take", "gain over the softmax, 95 %", "how sure", "cost of a step"]
    questions = texts["studies"] | texts["ladders"] | {"measures": texts["measures"]}
    questions |= texts["spamlang"]
    studies = [f"- [{of['question']}](results/{name}.md)" for name, of in questions.items()]
    runs = ", ".join(f"[{of['title']}](results/{n}.md)" for n, of in texts["runs"].items())
    listed = "\n".join(f"results/{n}" for n in (*questions, *texts["runs"]))
    parts = [
        "# Results", SIZES if ended else f"{SIZES} {IMPROVING}",
        texts["advice"].strip(), formatting.table(headings, rows) + "\n" + texts["note"],
        "![Gain over the softmax in percent of its score](images/gains.svg)",
        "[Your own text](howto/own_text.md).",
        "## Studies", "\n".join([*studies, f"- Single runs: {runs}"]),
        f"```{{toctree}}\n:hidden:\n\n{listed}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def is_improving(run: RecordedRun) -> bool:
    """Whether a longer training might have ended with another score."""
    return any("still improving" in doubt for doubt in doubts(run.record))


def cost(file: str, implementation: str) -> str:
    """Return the time of a step over the softmax's, from a file of benchmarks."""
    return f"{float(measured(file, implementation)['over_baseline']):.2f}"


def measured(file: str, implementation: str, case: str | None = None) -> dict[str, str]:
    """Return the row of an implementation in a file of benchmarks."""
    with (DOCS / "benchmarks" / f"{file}.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["implementation"] == implementation and case in (None, row["case"]):
                return row
    raise ValueError(f"docs/benchmarks/{file}.csv has no row {case or ''} {implementation!r}")


def cost_table(texts: Mapping[str, Any]) -> str:
    """Return what each layer costs, as docs/benchmarks.md shows it."""
    rows = []
    for row in texts["costs"]:
        steps = [
            cost(*row[kind]) if kind in row else "–" for kind in ("train", "lstm", "translate")
        ]
        if "loss" in row:
            file, case = row["loss"]
            ours, plain = (measured(file, impl, case) for impl in ("cpp", "naive"))
            memory = float(plain["memory"]) / float(ours["memory"])
            time = float(ours["over_baseline"]) / float(plain["over_baseline"])
            loss = [f"1/{memory:.1f}", f"{time:.2f}"]
        else:
            loss = ["–", "–"]
        if row["layer"] == "softmax":
            steps = ["1"] * 3
        rows.append([row["layer"], *steps, *loss])
    headings = [
        "layer", "training step, Transformer", "training step, AWD-LSTM", "beam search",
        "loss, memory (plain code = 1)", "loss, time (plain code = 1)",
    ]  # fmt: skip
    return formatting.table(headings, rows)


def study_page(name: str, of: Mapping[str, Any], pages: dict[str, str]) -> str:
    """Return the page of a study; its figure is added to `pages`."""
    first = next(iter(study(name).systems)).runs[0].record["metrics"]
    columns = of.get("columns", [RANK] if RANK in first else [])
    compared = study(name, *columns)
    parts = [f"# {of['title']}", of["question"], of["setting"]]
    parts.append(f"```bash\n{of['command']}\n```")
    parts.append(to_markdown([one_table(compared)]).strip())
    tested = [one for one in compared.systems if one.comparison]
    if tested:
        pages[f"images/results/{name}.svg"] = forest(
            [gain_of(name, one, one.name) for one in tested]
        )
        parts.append(f"![Gains over the softmax](../images/results/{name}.svg)")
    if "image" in of:
        parts.append(f"![{of['image'][1]}](../images/{of['image'][0]})")
    parts += [filled(name, of["found"]).strip(), claim(compared)]
    return "\n\n".join(parts) + "\n"


def one_table(compared: Compared) -> Table:
    """Return the tested metric and the others in one table, without what its sentences say."""
    first, *others = brief(comparison_tables(compared, timed=False))
    names = [one.name for one in compared.systems]
    counts = {str(len(one.runs)) for one in compared.systems}
    left_out = "seeds" if len(counts) == 1 else ""
    kept = [i for i, heading in enumerate(first.headings) if heading != left_out]
    headings = [first.headings[i] for i in kept]
    rows = [[row[i] for i in kept] for row in first.rows]
    for table in others:
        headings += table.headings[1:]
        rows = [[*row, *more[1:]] for row, more in zip(rows, table.rows, strict=True)]
    notes = first.notes if others else first.notes[:-1]  # the claim is the last sentence
    seeds = [f"{counts.pop()} seeds each."] if len(counts) == 1 else []
    notes = [*seeds, *(note.replace(", ".join(names) + ".", "all.") for note in notes)]
    return Table("", headings, rows, ["\n".join(notes)], first.lines)


def runs_page(name: str, of: Mapping[str, Any]) -> str:
    """Return the page of runs that have one seed each."""
    table = runs_table(sorted((DOCS / "records" / name).glob("*.json")))
    return f"# {of['title']}\n\n{of['setting']}\n\n{to_markdown([table])}"


def ladder_page(name: str, of: Mapping[str, Any]) -> str:
    """Return the page of a ladder, of the sizes and arms that have records."""
    records = sorted((DOCS / "records" / name).glob("*.json"))
    ladder = read_ladder(DOCS.parent / of["file"])
    base, names = ladder.settings.baseline, {path.stem.rpartition("-")[0] for path in records}
    sizes = {n: size for n, size in ladder.sizes.items() if f"{base}_{n}" in names}
    arms = [name for name in ladder.arms if f"{name}_{next(iter(sizes))}" in names]
    ladder = replace(ladder, sizes=sizes, arms=arms)
    table, _ = judge(ladder, of_records(ladder, records))
    parts = [f"# {of['title']}", of["question"], of["setting"]]
    rows = to_markdown([replace(table, notes=[])]).strip()
    notes = [f"- {note}" for note in table.notes]
    parts += [f"```bash\nhighrank ladder {of['file']}\n```", rows, "\n".join(notes)]
    parts.append(of["found"].strip())
    return "\n\n".join(parts) + "\n"


def measures_page(of: Mapping[str, str]) -> str:
    """Return the correlations of measures with quality over layers, each the mean of its seeds."""
    found = {}
    studies = {"ptb_small": "test_perplexity", "multi30k_small": "sacrebleu"}
    for name, quality in studies.items():
        for measure, metric in MEASURES.items():
            x, y = (
                [mean(one.values(of)) for one in study(name).systems] for of in (metric, quality)
            )
            found[measure, name] = pearson(x, y)
    adjusted = dict(zip(found, holm([one.p_value for one in found.values()]), strict=True))
    rows = [
        [measure, *(f"r = {found[measure, name].r:.2f}, p = {adjusted[measure, name]:.2g}"
                    for name in studies)]
        for measure in MEASURES
    ]  # fmt: skip
    headings = ["measure"] + [
        f"[{metric_named(studies[name]).title}, {title}]({name}.md)"
        for name, title in (("ptb_small", "Penn Treebank"), ("multi30k_small", "Multi30k"))
    ]
    return "\n".join(
        [f"# {of['title']}", "", of["text"], formatting.table(headings, rows), of["found"]]
    )


def spamlang_page(name: str, of: Mapping[str, Any]) -> str:
    """Return the page of runs of the synthetic copying task."""
    record = json.loads((DOCS / "records" / f"{name}.json").read_text(encoding="utf-8"))
    return "\n".join([f"# {of['title']}", "", of["text"], grid_table(record["runs"])])


def pages() -> dict[str, str]:
    """Return the text of each page and figure by its path in docs/."""
    texts: Mapping[str, Any] = read_tree(DOCS / "results.yaml").values
    found: dict[str, str] = {}
    found["results.md"] = first_page(texts, found)
    for name, of in texts["studies"].items():
        found[f"results/{name}.md"] = study_page(name, of, found)
    for name, of in texts["runs"].items():
        found[f"results/{name}.md"] = runs_page(name, of)
    for name, of in texts["ladders"].items():
        found[f"results/{name}.md"] = ladder_page(name, of)
    found["results/measures.md"] = measures_page(texts["measures"])
    for name, of in texts["spamlang"].items():
        found[f"results/{name}.md"] = spamlang_page(name, of)
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
