"""scripts/test.sh with fake tools: what it runs, how it counts, and when it fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST_LINE = "3 passed, 1 skipped in 9.0s"
FAKE_PYTEST = """#!/bin/sh
echo "pytest $*" >>calls
echo "$FAKE_LAST_LINE"
echo "INFO: 1 failed attempt, said by a library at its end"
exit "$FAKE_STATUS"
"""
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *find_spec*triton*) exit ${FAKE_TRITON:-1} ;;
    *find_spec*sphinx*) exit ${FAKE_DOCS:-1} ;;
esac
echo "python $*" >>calls
exit ${FAKE_PIP:-0}
"""


@pytest.fixture
def run(tmp_path):
    for script in ("scripts/test.sh", ".ci/run"):
        (tmp_path / script).parent.mkdir()
        shutil.copy(ROOT / script, tmp_path / script)
    (tmp_path / "scripts" / "setup.sh").write_text("echo setup >>calls\n")
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / ".venv" / "triton_oldest").mkdir()
    for tool in ("ruff", "mypy", "shellcheck"):
        (tools / tool).write_text(
            f'#!/bin/sh\necho "{tool} $*" >>calls\nexit ${{FAKE_{tool}:-0}}\n'
        )
    (tools / "pytest").write_text(FAKE_PYTEST)
    (tools / "python").write_text(FAKE_PYTHON)
    for path in tools.iterdir():
        path.chmod(0o755)

    def run(*words, last_line=LAST_LINE, status=0, script="scripts/test.sh", **fakes):
        environment = {"FAKE_LAST_LINE": last_line, "FAKE_STATUS": str(status), **fakes}
        return subprocess.run(
            ["bash", script, *words], cwd=tmp_path, env={**os.environ, **environment},
            capture_output=True, text=True,
        )  # fmt: skip

    run.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return run


@pytest.mark.parametrize("script", ["scripts/test.sh", ".ci/run"])
def test_the_script_runs_every_check_and_all_tests(run, script):
    result = run(script=script)
    assert result.returncode == 0
    # 4 checks, 3 tests
    assert result.stdout.splitlines()[-1] == "7 passed, 0 failed, 1 skipped"
    calls = run.calls()
    assert calls[0] == "setup"
    names = ["ruff", "ruff", "mypy", "shellcheck", "pytest"]
    assert [call.split()[0] for call in calls[1:]] == names
    assert "./scripts/test.sh" in calls[4] and "./.ci/run" in calls[4]
    assert calls[5].split()[-1] == "tests"
    assert all(f"\n{name} " in result.stdout for name in ("mypy", "pytest", "total"))


@pytest.mark.parametrize(("last", "status", "fakes", "sums"), [
    ("2 failed, 1 passed, 4 xfailed, 3 errors in 1.0s", 1, {}, "5 passed, 5 failed, 0 skipped"),
    ("Segmentation fault", 139, {}, "4 passed, 1 failed, 0 skipped"),
    (LAST_LINE, 0, {"FAKE_mypy": "1"}, "6 passed, 1 failed, 1 skipped"),
    (LAST_LINE, 0, {"FAKE_shellcheck": "1"}, "6 passed, 1 failed, 1 skipped"),
])  # fmt: skip
def test_failures_of_checks_and_tests_are_summed(run, last, status, fakes, sums):
    result = run(last_line=last, status=status, **fakes)
    assert result.returncode == 1 and result.stdout.splitlines()[-1] == sums


@pytest.mark.parametrize(
    ("option", "words"), [("--fast", "--fast"), ("--all", "--run-long --write-durations")]
)
def test_options_select_fewer_or_more_tests_and_others_are_refused(run, option, words):
    assert run(option).returncode == 0
    assert words in run.calls()[-1]
    refused = run(f"{option}s")
    assert refused.returncode == 2 and "known are --fast, --all" in refused.stderr


@pytest.mark.parametrize("pip", ["0", "1"])
@pytest.mark.parametrize("missing", ["triton", "docs"])
def test_a_missing_set_of_requirements_is_installed_if_possible(run, missing, pip):
    result = run(**{f"FAKE_{missing.upper()}": "0"}, FAKE_PIP=pip)  # 0: python finds none
    assert result.returncode == 0
    assert f"== installing requirements/{missing}.txt" in result.stdout
    assert (f"cannot install requirements/{missing}.txt" in result.stderr) == (pip == "1")
    install = run.calls()[1].split()
    assert install[:4] == ["python", "-m", "pip", "install"] and "--no-deps" in install
    assert install[-2:] == ["--requirement", f"requirements/{missing}.txt"]


def test_the_oldest_triton_is_installed_apart_from_the_others(run, tmp_path):
    (tmp_path / ".venv" / "triton_oldest").rmdir()
    assert run().returncode == 0
    words = "requirements/triton_oldest.txt --target .venv/triton_oldest"
    assert run.calls()[1].endswith(f"--no-deps --requirement {words}")
