"""Every table of measurements equals its file, and every file has a table."""

import csv
import json
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.rows import read_csv, table
from highrank_plugins.common.formatting import table as table_of
from highrank_plugins.common.yaml_tree import read_tree
from scripts import results_pages

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "benchmarks.md", *(DOCS / "benchmarks").glob("*.md")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
KERNELS = DOCS / "benchmarks" / "kernels_sm90.csv"
FILES = sorted({*(DOCS / "benchmarks").glob("*.csv")} - {KERNELS})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_table_is_printed_from_its_file(path):
    assert table(read_csv(path)) in TEXT


def test_every_table_has_a_file():
    assert FILES and TEXT.count("| case | implementation | tokens |") == len(FILES)


def test_the_table_of_kernels_is_printed_from_its_file():
    """The table has the larger kernels of bfloat16: with gradient, and with smoothing if it may."""
    with KERNELS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "bfloat16"]
    columns = ["kernel", "components", "pointwise", "registers", "instructions_per_logit"]
    shown = [
        [row[column] for column in columns]
        for row in rows
        if row["gradient"] == "yes"
        and (row["kernel"] != "softmax_kernel" or row["smoothing"] == "0.1")
        and (row["kernel"] != "gradient_kernel" or row["components"] == "9")
    ]
    heading = ["kernel", "K", "function", "registers", "instructions per logit"]
    assert table_of(heading, shown) in TEXT
    assert all(row["spilled"] == "0" for row in rows)


def test_the_table_of_generation_is_printed_from_its_file():
    lines = (DOCS / "benchmarks" / "generate_processes.jsonl").read_text(encoding="utf-8")
    for row in map(json.loads, lines.splitlines()[:-1]):
        assert f"| {row['one']} | {row['two']} | {row['ratio']} |" in TEXT


@pytest.mark.parametrize("path", sorted((DOCS / "benchmarks").glob("data_path_*.jsonl")), ids=str)
def test_the_documented_data_costs_are_those_of_the_file(path):
    text = (DOCS / "howto" / "wmt14.md").read_text(encoding="utf-8")
    *rows, total = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    for row in rows:
        numbers = f"{row['seconds']} | {row['pairs_per_second']:,} | {row['mib']:,}"
        assert f"| {row['name']} | {numbers} |" in text
    assert f"**{total['ours_pairs_per_second']:,}** pairs/s" in text


def test_the_first_table_is_computed_from_the_files():
    texts = read_tree(results_pages.TEXTS).values
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert results_pages.cost_table(texts) in page
    assert len(page.split()) < 900
