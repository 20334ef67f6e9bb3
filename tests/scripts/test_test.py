"""scripts/test.sh with fake tools: what it runs, how it counts, and when it fails."""

import shutil

import pytest

from tests.recipes.running import REPOSITORY as ROOT
from tests.recipes.running import run, write_program

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
def script(tmp_path):
    """Return a function that runs the script on a copy with fake tools."""
    for name in ("scripts/test.sh", ".ci/run"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts" / "setup.sh").write_text("echo setup >>calls\n")
    fakes = {"pytest": FAKE_PYTEST, "python": FAKE_PYTHON}
    for tool in ("ruff", "mypy", "shellcheck"):
        fakes[tool] = f'#!/bin/sh\necho "{tool} $*" >>calls\nexit ${{FAKE_{tool}:-0}}\n'
    for tool, text in fakes.items():
        write_program(tmp_path / ".venv" / "bin" / tool, text)
    (tmp_path / ".venv" / "triton_oldest").mkdir()

    def script(*words, last_line=LAST_LINE, status=0, name="scripts/test.sh", code=0, **fakes):
        environment = {"FAKE_LAST_LINE": last_line, "FAKE_STATUS": str(status), **fakes}
        return run(["bash", name, *words], code, tmp_path, **environment)

    script.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return script


@pytest.mark.parametrize("name", ["scripts/test.sh", ".ci/run"])
def test_the_script_runs_every_check_and_all_tests(script, name):
    result = script(name=name)
    # 4 checks, 3 tests
    assert result.stdout.splitlines()[-1] == "7 passed, 0 failed, 1 skipped"
    calls = script.calls()
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
def test_failures_of_checks_and_tests_are_summed(script, last, status, fakes, sums):
    result = script(last_line=last, status=status, code=1, **fakes)
    assert result.stdout.splitlines()[-1] == sums


@pytest.mark.parametrize(
    ("option", "words"), [("--fast", "--fast"), ("--all", "--run-long --write-durations")]
)
def test_options_select_fewer_or_more_tests_and_others_are_refused(script, option, words):
    script(option)
    assert words in script.calls()[-1]
    assert "known are --fast, --all" in script(f"{option}s", code=2).stderr


@pytest.mark.parametrize("pip", ["0", "1"])
@pytest.mark.parametrize("missing", ["triton", "docs"])
def test_a_missing_set_of_requirements_is_installed_if_possible(script, missing, pip):
    result = script(**{f"FAKE_{missing.upper()}": "0"}, FAKE_PIP=pip)  # 0: python finds none
    assert f"== installing requirements/{missing}.txt" in result.stdout
    assert (f"cannot install requirements/{missing}.txt" in result.stderr) == (pip == "1")
    install = script.calls()[1].split()
    assert install[:4] == ["python", "-m", "pip", "install"] and "--no-deps" in install
    assert install[-2:] == ["--requirement", f"requirements/{missing}.txt"]


def test_the_oldest_triton_is_installed_apart_from_the_others(script, tmp_path):
    (tmp_path / ".venv" / "triton_oldest").rmdir()
    script()
    words = "requirements/triton_oldest.txt --target .venv/triton_oldest"
    assert script.calls()[1].endswith(f"--no-deps --requirement {words}")
