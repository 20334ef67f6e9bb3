"""Every table of measurements is what its file says, and every file is shown."""

import json
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.report import table
from highrank_plugins.benchmarks.rows import read_csv

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "benchmarks").glob("*.csv"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_table(path):
    assert table(read_csv(path)) in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_no_table_without_a_file():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert FILES and text.count("| case | implementation |") == len(FILES)


def test_generation_on_two_processes():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    lines = (DOCS / "benchmarks" / "generate_processes.jsonl").read_text(encoding="utf-8")
    for row in map(json.loads, lines.splitlines()[:-1]):
        assert f"| {row['one']} | {row['two']} | {row['ratio']} |" in text


@pytest.mark.parametrize("path", sorted((DOCS / "benchmarks").glob("data_path_*.jsonl")), ids=str)
def test_cost_of_the_data(path):
    text = (DOCS / "howto" / "wmt14.md").read_text(encoding="utf-8")
    *rows, total = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    for row in rows:
        numbers = f"{row['seconds']} | {row['pairs_per_second']:,} | {row['mib']:,}"
        assert f"| {row['name']} | {numbers} |" in text
    assert f"**{total['ours_pairs_per_second']:,}** pairs/s" in text
