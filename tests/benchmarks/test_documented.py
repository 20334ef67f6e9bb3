"""Every table of docs/benchmarks.md is what its CSV file says, and every file is shown."""

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
    assert FILES and text.count("| case | contender |") == len(FILES)
