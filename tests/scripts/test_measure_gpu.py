"""`scripts/measure_gpu.sh` goes through all its parts, and keeps what each printed."""

import re
import shlex
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.case import named
from highrank_plugins.benchmarks.implementations import IMPLEMENTATIONS
from highrank_plugins.benchmarks.rows import read_csv
from tests.recipes.running import REPOSITORY as ROOT
from tests.recipes.running import run, write_program

SCRIPT, RECIPE = ROOT / "scripts" / "measure_gpu.sh", ROOT / "recipes" / "ptb"
PARTS = "machine kernels wmt ptb train train_ptb curves tests wmt_128k chunks tables".split()
CURVES = ["softmax_mos_settings", "mos", "mixtape", "mixtape"]
STUB = """#!/usr/bin/env bash
echo "ran $*"
case "$*" in
    doctor) exit 3 ;;
    "bench loss"*"--preset ptb"*) sleep 30 ;;
esac
"""


def measure_gpu(*words, script=SCRIPT, code=0):
    return run(["bash", script, *words], code)


def test_the_commands_exist_and_their_packages_are_pinned(tmp_path):
    done = measure_gpu("--dry-run", "--output", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    said = [line.removeprefix("== ").split(": ", 1) for line in done.stdout.splitlines()]
    lines = dict(said)
    assert list(lines) == PARTS
    curves = [re.findall(r"--conf (\S+)", words)[0] for name, words in said if name == "curves"]
    assert [Path(conf).name for conf in curves] == CURVES
    assert all((RECIPE / "conf" / f"{conf}.yaml").is_file() for conf in curves)
    for name in ("wmt", "train", "wmt_128k", "ptb", "chunks"):
        _, kind, *words = shlex.split(lines[name].removeprefix("highrank "))
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert named(kind, given["--preset"])
        assert {*given.get("--impl", "auto").split(",")} <= {*IMPLEMENTATIONS}
        assert given["--device"] == "cuda" and given["--csv"].endswith(f"gpu_{name}.csv")
    # what a machine without a network lacks is pinned
    text = SCRIPT.read_text(encoding="utf-8")
    (lacking,) = re.findall(r'^lacking="(.*?)"', text, re.DOTALL | re.MULTILINE)
    pinned = (ROOT / "requirements" / "pinned.txt").read_text(encoding="utf-8").lower()
    assert all(f"\n{name.lower()}==" in f"\n{pinned}" for name in lacking.split())


@pytest.fixture
def stubbed(tmp_path):
    """Return a function that runs a changed copy of the script with fake programs."""

    def stubbed(old, new, *words, code=1):
        text = SCRIPT.read_text(encoding="utf-8")
        assert old in text
        script = tmp_path / "scripts" / "measure_gpu.sh"
        write_program(script, text.replace(old, new))
        return measure_gpu("--output", tmp_path / "new", *words, script=script, code=code).stderr

    for name in ("highrank", "python"):
        write_program(tmp_path / ".venv" / "bin" / name, STUB)
    return stubbed


def test_a_part_that_fails_or_takes_too_long_does_not_stop_the_others(stubbed, tmp_path):
    said = stubbed("part ptb 300", "part ptb 1")
    assert "failed: machine (exit code 3)\n" in said and said.count("failed:") == 3
    assert "failed: ptb (stopped after 1 s)\n" in said
    assert "failed: curves (give --data)\n" in said
    for name in {*PARTS} - {"curves"}:
        assert (tmp_path / "new" / f"{name}.log").read_text().startswith("ran ")


def test_parts_share_a_folder_and_tables_are_printed_where_they_took_all_the_time(
    stubbed, tmp_path
):
    stubbed("reserve=45", "reserve=45", "--part", "wmt", code=0)
    said = stubbed("60 * minutes - reserve", "1", "--part", "ptb", "--part", "tables")
    assert said.count("failed:") == 1 and "failed: ptb (" in said
    logs = {path.name for path in (tmp_path / "new").iterdir()}
    assert logs == {"wmt.log", "ptb.log", "tables.log"}
    assert (tmp_path / "new" / "tables.log").read_text().startswith("ran bench table")


@pytest.mark.long
def test_a_rehearsal_runs_the_chosen_parts(tmp_path):
    parts = ["--part", "ptb", "--part", "tables"]
    measure_gpu("--rehearse", *parts, "--output", tmp_path / "new")
    assert [row.tokens for row in read_csv(tmp_path / "new" / "gpu_ptb.csv")] == [8, 8, 8]
    assert "| ptb/mos tokens=8 | fused |" in (tmp_path / "new/tables.log").read_text()
