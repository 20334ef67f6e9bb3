"""scripts/setup.sh and test.sh on copies with fakes for programs, and the image's install."""

import re
import shutil

import pytest

from tests.recipes.running import REPOSITORY as ROOT
from tests.recipes.running import run, write_program

# Plays Python 3.11 with venv, pip and `highrank doctor`, and writes down what it is asked to do.
FAKE_PYTHON = r"""#!/usr/bin/env bash
root="$FAKE_ROOT"
echo "$*" >>"$root/calls"
case "$*" in
    -c*) echo "${FAKE_VERSION:-3.11}" ;;
    "-m venv"*)
        mkdir -p "$root/.venv/bin"
        cp "$0" "$root/.venv/bin/python"
        echo "VIRTUAL_ENV=$root/.venv" >"$root/.venv/bin/activate"
        printf '#!/bin/sh\nexit ${FAKE_DOCTOR:-0}\n' >"$root/.venv/bin/highrank"
        chmod +x "$root/.venv/bin/highrank"
        ;;
    -I*) cat requirements/pinned.txt setup.py; cat "$root/packages" 2>/dev/null || true ;;
    *pip*) exit "${FAKE_PIP:-0}" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """Return a function that runs setup.sh on a copy of the files that it reads."""
    root = tmp_path.resolve()
    for name in ("scripts/setup.sh", "requirements/pinned.txt", "setup.py", "pyproject.toml"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    write_program(root / "python", FAKE_PYTHON)

    def setup(*arguments: str, code: int = 0, **environment: str):
        known = {"FAKE_ROOT": str(root), "PYTHON": str(root / "python")} | environment
        return run(["bash", "scripts/setup.sh", *arguments], code, root, **known)

    setup.root = root
    return setup


def test_setup_refuses_an_unsupported_python_and_an_unknown_option(clone):
    for old in ("3.10", "3.13"):
        said = clone(FAKE_VERSION=old, code=1).stderr
        assert all(words in said for words in (old, "3.11 or 3.12", "PYTHON"))
    assert "/no/such/python" in clone(PYTHON="/no/such/python", code=1).stderr
    assert "--hlep" in clone("--hlep", code=2).stderr
    assert not (clone.root / ".venv").exists()


def test_setup_installs_torch_then_the_pins_then_the_project_and_again_what_has_changed(clone):
    clone(FAKE_VERSION="3.12")
    calls = [line for line in (clone.root / "calls").read_text().splitlines() if "pip" in line]
    assert "torch==" in calls[0] and "--no-deps" not in calls[0]
    assert "--requirement" in calls[1] and "--editable ." in calls[2]
    assert all("--no-deps" in call for call in calls[1:])
    assert "up to date" in clone().stderr
    for changed in ("requirements/pinned.txt", "setup.py", "packages"):
        with (clone.root / changed).open("a") as file:
            file.write("# changed\n")
        assert "up to date" not in clone().stderr and "up to date" in clone().stderr


def test_setup_repairs_an_interrupted_installation_and_follows_another_python(clone):
    clone(FAKE_PIP="1", code=1)
    half = clone.root / ".venv" / "half"
    half.touch()
    assert "incomplete" in clone().stderr and not half.exists()
    assert "up to date" in clone().stderr
    for lost in "bin/python", "bin/activate":
        (clone.root / ".venv" / lost).unlink()
        clone()
        assert (clone.root / ".venv" / lost).exists()
    other = clone.root / "python3.12"
    write_program(other, FAKE_PYTHON.replace("FAKE_VERSION:-3.11", "FAKE_VERSION:-3.12"))
    assert "it is of Python 3.11" in clone(PYTHON=str(other)).stderr
    clone(FAKE_DOCTOR="1", code=1)
    assert "up to date" not in clone().stderr


LAST_LINE = "3 passed, 1 skipped in 9.0s"
FAKE_PYTEST = """#!/bin/sh
echo "pytest $*" >>calls
echo "$FAKE_LAST_LINE"
echo "INFO: 1 failed attempt, said by a library at its end"
exit "$FAKE_STATUS"
"""
TOOLS_PYTHON = """#!/bin/sh
case "$*" in
    *find_spec*) exit 0 ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that runs the script on a copy with fake tools."""
    for name in ("scripts/test.sh", ".ci/run"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts" / "setup.sh").write_text("echo setup >>calls\n")
    fakes = {"pytest": FAKE_PYTEST, "python": TOOLS_PYTHON}
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


def test_the_script_runs_every_check_and_all_tests(script):
    script(name=".ci/run")
    calls = script.calls()
    script("--fast")
    assert "--fast" in script.calls()[-1]
    script("--all")
    assert "--run-long --write-durations" in script.calls()[-1]
    assert "known are --fast, --all" in script("--fats", code=2).stderr
    result = script()
    assert result.stdout.splitlines()[-1] == "7 passed, 0 failed, 1 skipped"  # 4 checks, 3 tests
    assert calls == script.calls()[-len(calls) :]
    names = ["setup", "ruff", "ruff", "mypy", "shellcheck", "pytest"]
    assert [call.split()[0] for call in calls] == names
    assert "./scripts/test.sh" in calls[4] and "./.ci/run" in calls[4]
    assert calls[5].split()[-1] == "tests"
    assert all(f"\n{name} " in result.stdout for name in ("mypy", "pytest", "total"))
    # failures of checks and tests are summed
    for last, status, fakes, sums in (
        ("2 failed, 1 passed, 4 xfailed, 3 errors in 1.0s", 1, {}, "5 passed, 5 failed, 0 skipped"),
        ("Segmentation fault", 139, {}, "4 passed, 1 failed, 0 skipped"),
        (LAST_LINE, 0, {"FAKE_mypy": "1"}, "6 passed, 1 failed, 1 skipped"),
        (LAST_LINE, 0, {"FAKE_shellcheck": "1"}, "6 passed, 1 failed, 1 skipped"),
    ):
        result = script(last_line=last, status=status, code=1, **fakes)
        assert result.stdout.splitlines()[-1] == sums


def test_the_commands_of_the_image_are_those_of_readme():
    (install,) = re.findall(
        r"## Install\n+```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    words = [w.strip() for w in re.sub(r"#.*", "", install).replace("\n", " && ").split("&&")]
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    made = {word: line.removeprefix(word) for line in lines if (word := line.split(" ")[0] + " ")}
    folder = f"/{made['WORKDIR '].strip('/')}"
    assert [w for w in words if w] == [
        f"git clone REPOSITORY_URL {folder[1:]}", f"cd {folder[1:]}",  # COPY and WORKDIR
        made["RUN "], "source .venv/bin/activate",
    ]  # fmt: skip
    assert made["COPY "] == ". ." and made["ENV "] == f"PATH={folder}/.venv/bin:$PATH"
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "exp"} <= set(ignored)
