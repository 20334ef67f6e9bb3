"""The command itself: help, its speed, unknown words, and the directory for fairseq."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.cli import COMMANDS

HIGHRANK = Path(sys.executable).parent / "highrank"
PACKAGE = str(Path(highrank_plugins.__file__).parent.resolve())


def highrank(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HIGHRANK, *arguments], capture_output=True, text=True, cwd=cwd)


def test_help_names_every_subcommand():
    result = highrank("--help")
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_subcommand_has_help(name):
    result = highrank(name, "--help")
    assert result.returncode == 0
    assert f"Usage: highrank {name}" in result.stdout


def test_help_is_fast():
    def processor_seconds() -> float:
        before = os.times()
        highrank("--help")
        after = os.times()
        children = ("children_user", "children_system")
        return sum(getattr(after, field) - getattr(before, field) for field in children)

    # not wall time, which a busy machine multiplies; it can still only make this slower,
    # so that one run below the limit is the proof
    assert any(processor_seconds() < 0.3 for _ in range(8))


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from highrank_plugins.cli import build_app; build_app([])\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "fairseq", "pydantic", "yaml"} & set(result.stdout.split())


def test_user_dir_is_the_package_from_anywhere(tmp_path):
    result = highrank("user-dir", cwd=tmp_path)
    assert result.stdout == PACKAGE + "\n"


def test_module_form_is_the_same_command(tmp_path):
    command = [sys.executable, "-m", "highrank_plugins.cli", "user-dir"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout == PACKAGE + "\n"


def test_version():
    assert highrank("--version").stdout == f"highrank_plugins {highrank_plugins.__version__}\n"


def test_a_missing_file_is_named_as_in_every_other_command(tmp_path):
    arguments = ["--output", "scores.json", "--hypotheses", "test.de"]
    (tmp_path / "test.en").write_text("a\n")
    for words in (["missing", "test.en"], ["test.en", "missing"]):
        result = highrank("score", *words, *arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert result.stderr == "highrank: missing: no such file or directory\n"


def test_unknown_subcommand_names_the_nearest():
    result = highrank("docter")
    assert result.returncode == 2
    assert "No such command 'docter'" in result.stderr
    assert "'doctor'" in result.stderr


def test_unknown_option_names_the_nearest():
    result = highrank("doctor", "--jsn")
    assert result.returncode == 2
    assert "--json" in result.stderr
