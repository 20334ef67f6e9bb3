"""The pages of results are what scripts/results_pages.py computes from records, and are short."""

import json
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from statistics import mean

import pytest

from highrank_plugins.benchmarks.rows import read_csv, table
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.results.published import FILE, read_published
from highrank_plugins.training import configuration
from scripts import papers_page, results_pages
from tests.recipes.running import RECIPES

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = DOCS / "records"
PAGES = results_pages.pages()
PERPLEXITY = r"\b\d\d\.\d\d\b(?! %)"


def different_lines(page: str, computed: str) -> list[str]:
    """Return `docs/page:line: …` for each line that is not what records and scripts give."""
    lines = zip_longest(
        (DOCS / page).read_text(encoding="utf-8").splitlines(), computed.splitlines()
    )
    return [
        f"docs/{page}:{number}: has {written!r}, and the records give {right!r}"
        for number, (written, right) in enumerate(lines, 1)
        if written != right
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_script_writes(page):
    assert different_lines(page, PAGES[page]) == []


def test_every_study_has_a_page():
    written = {f"results/{path.name}" for path in (DOCS / "results").glob("*.md")}
    drawn = {f"images/results/{path.name}" for path in (DOCS / "images" / "results").iterdir()}
    assert written | drawn == {page for page in PAGES if "/" in page} - {"images/gains.svg"}
    studies = {path.stem for path in RECORDS.iterdir()}
    assert {f"results/{name}.md" for name in (*studies, "measures")} == written


def test_sizes_of_own_text_show_their_records():
    text = (DOCS / "howto" / "own_text.md").read_text(encoding="utf-8").partition("## Sizes")[2]
    (table,) = re.findall(r"\| text \| size \| result.*?\n\n", text, re.DOTALL)
    files = [*(RECORDS / "own_text").iterdir(), RECORDS / "multi30k_en_de" / "softmax.json"]
    records = [json.loads(path.read_text()) for path in files]
    known = {f"{value:.2f}" for record in records for value in record["metrics"].values()}
    shown = set(re.findall(r"\d+\.\d\d", table))
    assert len(shown) > 5 and shown <= known


def test_the_scores_in_the_quickstart_come_from_records():
    """Each `sacreBLEU <score> <signature>` of the page is the last line of a recorded run."""
    records = [json.loads(path.read_text()) for path in RECORDS.glob("*/*.json")]
    lines = {f"sacreBLEU {r['metrics'].get('sacrebleu')} {r.get('signature')}" for r in records}
    page = (DOCS / "start" / "quickstart.md").read_text()
    found = re.findall(r"sacreBLEU [\d.]+ nrefs[^\s`]+", page)
    assert found and set(found) <= lines


def test_numbers_follow_the_records():
    """The mean of three seeds, and a difference of two systems, computed here."""
    paths = {name: f"ptb_small/{name}-{{}}.json".format for name in ("mos", "sigsoftmax")}
    mos, best = (
        [json.loads((RECORDS / path(seed)).read_text())["metrics"] for seed in (1, 2, 3)]
        for path in paths.values()
    )
    own, other = (mean(m["test_perplexity"] for m in of) for of in (mos, best))
    text = results_pages.filled("ptb_small", "{mos}, {sigsoftmax - mos}, {mos: test_rank}.")
    assert text.startswith(f"{own:.2f}, {other - own:+.2f} [")
    assert text.endswith(f"], {mean(m['test_rank'] for m in mos):,.0f}.")


def test_repeated_numbers_are_those_of_the_results():
    """Each perplexity and BLEU with two decimals is a mean in the tables of the results."""
    means = set(re.findall(r"\b(\d\d\.\d\d)(?: ±|\*\*| \[)", "".join(PAGES.values())))
    for path, least in (("README.md", 9), ("docs/reference/heads.md", 5)):
        found = re.findall(PERPLEXITY, (DOCS.parent / path).read_text(encoding="utf-8"))
        assert len(found) >= least and [of for of in found if of not in means] == [], path


def test_figures_are_drawn_from_the_records(tmp_path):
    script = DOCS.parent / "scripts" / "draw_figures.py"
    subprocess.run([sys.executable, script, "--output", tmp_path], check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn
    for name in drawn:
        kept = (DOCS / "images" / name).read_bytes()
        assert (tmp_path / name).read_bytes() == kept, "run: python scripts/draw_figures.py"


# -- docs/papers.md is what scripts/papers_page.py prints, and its configurations exist --

ROOT = RECIPES.parent


PAPERS = papers_page.papers()["papers"]


def test_the_page_is_what_the_script_prints_and_begins_with_the_table_of_verdicts():
    assert different_lines("papers.md", papers_page.page()) == []
    first = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", first)
    assert len(rows) == 5 and all(int(all_) == sum(map(int, each)) for all_, *each in rows)


# part of a kind of score or of a system → the block, or the words, that its command needs
BLOCKS = {
    "(dynamic)": "dynamic_eval", "(cache)": "cache_eval", "rank": "spectrum", "KLD": "kld",
    ", finetuned": "finetune",
}  # fmt: skip
OPTIONS = {
    "train ": "--splits train,valid,test", "valid rank": "--measured valid,test",
    "valid KLD": "--measured valid,test",
}  # fmt: skip


def test_every_system_with_a_configuration_is_trained_and_measured_by_a_row():
    checked = set()
    for key, row in ((key, row) for key, paper in PAPERS.items() for row in paper["tables"]):
        cells = papers_page.printed_cells(key, row, row["task"]) if "confs" in row else ()
        for entry, kind in cells:
            if entry.conf is None or kind not in entry.scores:
                continue
            assert entry.conf in row["confs"], (row, entry)
            conf = RECIPES / row["task"] / "conf" / f"{entry.conf}.yaml"
            blocks = configuration.load(conf, row.get("set", [])).blocks()
            what = f"{kind}, {entry.system}"
            assert {need for part, need in BLOCKS.items() if part in what} <= blocks.keys(), what
            needed = {need for part, need in OPTIONS.items() if part in what}
            assert needed <= set(row.get("options", [])), what
            checked.add(kind)
    kinds = {"test ppl (dynamic)", "test ppl (cache)", "valid rank", "KLD", "train ppl"}
    assert kinds <= checked
    for task in read_tree(FILE).values:
        for entry in read_published(task):
            paper = PAPERS.get(papers_page.paper_of(entry))
            if entry.conf is not None and paper is not None:
                rows = [row for row in paper["tables"] if row.get("task") == task]
                assert any(entry.conf in row["confs"] for row in rows), (task, entry)


# -- tables of measurements equal their files, and every file has a table --

MEASURED = [DOCS / "benchmarks.md", *(DOCS / "benchmarks").glob("*.md")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in MEASURED)
KERNELS = DOCS / "benchmarks" / "kernels_sm90.csv"
FILES = sorted({*(DOCS / "benchmarks").glob("*.csv")} - {KERNELS})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_table_is_printed_from_its_file(path):
    (page,) = (page for page in MEASURED if f"<!-- {path.name} -->" in page.read_text())
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(f"<!-- {path.name} -->\n")
    rest = rest[re.match(r"(\|.*\n)*", rest).end() :]
    computed = f"{head}<!-- {path.name} -->\n{table(read_csv(path))}{rest}"
    assert different_lines(page.relative_to(DOCS).as_posix(), computed) == []


def test_every_table_has_a_file():
    assert FILES and TEXT.count("| case | implementation | tokens |") == len(FILES)


def test_the_first_table_is_computed_from_the_files():
    texts = read_tree(DOCS / "results.yaml").values
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    before, _, rest = page.partition("| layer |")
    rest = rest[re.match(r".*\n(\|.*\n)*", rest).end() :]
    computed = f"{before}{results_pages.cost_table(texts)}{rest}"
    assert different_lines("benchmarks.md", computed) == []
