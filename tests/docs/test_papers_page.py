"""docs/papers.md is what scripts/papers_page.py prints, and its configurations exist."""

import subprocess
import sys

from highrank_plugins.common.yaml_tree import read_tree
from tests.recipes.running import RECIPES

ROOT = RECIPES.parent


def test_the_page_is_what_the_script_prints():
    command = [sys.executable, ROOT / "scripts" / "papers_page.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def test_every_configuration_of_a_command_exists():
    papers = read_tree(ROOT / "docs" / "papers.yaml").values["papers"]
    rows = [row for paper in papers.values() for row in paper["tables"] if "confs" in row]
    assert len(rows) > 20
    for row in rows:
        for conf in row["confs"]:
            assert (RECIPES / row["task"] / "conf" / f"{conf}.yaml").is_file(), (row, conf)
