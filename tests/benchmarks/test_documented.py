"""Every table of measurements equals its file, and every file has a table."""

import csv
import json
import re
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.rows import read_csv, table
from highrank_plugins.common.blocks import read_tree
from scripts import results_pages
from tests.docs.test_results_pages import different_lines

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "benchmarks.md", *(DOCS / "benchmarks").glob("*.md")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
KERNELS = DOCS / "benchmarks" / "kernels_sm90.csv"
FILES = sorted({*(DOCS / "benchmarks").glob("*.csv")} - {KERNELS})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_table_is_printed_from_its_file(path):
    (page,) = (page for page in PAGES if f"<!-- {path.name} -->" in page.read_text())
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(f"<!-- {path.name} -->\n")
    rest = rest[re.match(r"(\|.*\n)*", rest).end() :]
    computed = f"{head}<!-- {path.name} -->\n{table(read_csv(path))}{rest}"
    assert different_lines(page.relative_to(DOCS).as_posix(), computed) == []


def test_every_table_has_a_file_and_the_pages_are_short():
    assert FILES and TEXT.count("| case | implementation | tokens |") == len(FILES)
    text = re.sub(r"```\{toctree\}.*?```|\]\([^)]*\)|<!--.*?-->", "", TEXT, flags=re.DOTALL)
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 2500


def test_no_kernel_of_bfloat16_spills():
    with KERNELS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "bfloat16"]
    assert rows and all(row["spilled"] == "0" for row in rows)


@pytest.mark.parametrize("path", sorted((DOCS / "benchmarks").glob("data_path_*.jsonl")), ids=str)
def test_the_documented_data_costs_are_those_of_the_file(path):
    text = (DOCS / "howto" / "wmt14.md").read_text(encoding="utf-8")
    *rows, total = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    for row in rows:
        numbers = f"{row['seconds']} | {row['pairs_per_second']:,} | {row['mib']:,}"
        assert f"| {row['name']} | {numbers} |" in text
    assert f"**{total['ours_pairs_per_second']:,}** pairs/s" in text


def test_the_first_table_is_computed_from_the_files():
    texts = read_tree(DOCS / "results.yaml").values
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    before, _, rest = page.partition("| layer |")
    rest = rest[re.match(r".*\n(\|.*\n)*", rest).end() :]
    computed = f"{before}{results_pages.cost_table(texts)}{rest}"
    assert different_lines("benchmarks.md", computed) == []


def test_the_numbers_of_the_pages_are_those_of_their_files():
    generation, libraries = (
        [json.loads(line) for line in (DOCS / "benchmarks" / name).read_text().splitlines()[:-1]]
        for name in ("generate_processes.jsonl", "cpu_libraries.jsonl")
    )
    for row in generation:
        assert f"| {row['one']} | {row['two']} | {row['ratio']} |" in TEXT
    ours, torchs = (
        results_pages.measured("cpu_one_softmax", name, "softmax_ptb")
        for name in ("cpp", "linear_cross_entropy")
    )
    memory, time = (float(torchs[of]) / float(ours[of]) for of in ("memory", "over_baseline"))
    assert f"needs {memory:.1f} of our memory and takes {time:.1f} times as long" in TEXT
    _, plain, cut, ours, half, _ = (row["over_products"] for row in libraries)
    said = f"{cut:.2f} times the products' [processor time](benchmarks/cpu_libraries.jsonl); "
    said += f"ours {ours:.2f}, plain code {plain:.2f}."
    text = " ".join(TEXT.split())
    assert said in text and f"bfloat16:** {half:.0f} times" in text
