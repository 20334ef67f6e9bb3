"""scripts/setup.sh on copies whose interpreters are fakes, and the image's install; no docker."""

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


@pytest.mark.parametrize(
    ("environment", "messages"),
    [({"FAKE_VERSION": old}, [old, "3.11 or 3.12", "PYTHON"]) for old in ("3.10", "3.13", "2.7")]
    + [({"PYTHON": "/no/such/python"}, ["/no/such/python"])],
)
def test_setup_refuses_an_unsupported_python(clone, environment, messages):
    said = clone(**environment, code=1).stderr
    assert all(words in said for words in messages)
    assert not (clone.root / ".venv").exists()


@pytest.mark.parametrize("changed", ["", "requirements/pinned.txt", "setup.py", "packages"])
def test_setup_installs_again_when_an_input_or_a_package_changes(clone, changed):
    clone()
    if changed:
        with (clone.root / changed).open("a") as file:
            file.write("# changed\n")
    assert ("up to date" in clone().stderr) == (not changed)
    calls = (clone.root / "calls").read_text()
    assert calls.count("--editable .") == (2 if changed else 1)


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_setup_installs_torch_then_the_pins_then_the_project(clone, version):
    clone(FAKE_VERSION=version)
    calls = [line for line in (clone.root / "calls").read_text().splitlines() if "pip" in line]
    assert "torch==" in calls[0] and "--no-deps" not in calls[0]
    assert "--requirement" in calls[1]
    assert "--editable ." in calls[2]
    assert all("--no-deps" in call for call in calls[1:])


def test_setup_repairs_an_interrupted_installation(clone):
    clone(FAKE_PIP="1", code=1)
    half = clone.root / ".venv" / "half"
    half.touch()
    assert "incomplete" in clone().stderr and not half.exists()
    assert "up to date" in clone().stderr
    for lost in "bin/python", "bin/activate":
        (clone.root / ".venv" / lost).unlink()
        clone()
        assert (clone.root / ".venv" / lost).exists()


def test_setup_makes_a_new_environment_for_another_python(clone):
    clone()
    other = clone.root / "python3.12"
    write_program(other, FAKE_PYTHON.replace("FAKE_VERSION:-3.11", "FAKE_VERSION:-3.12"))
    assert "it is of Python 3.11" in clone(PYTHON=str(other)).stderr
    clone(FAKE_DOCTOR="1", code=1)
    assert "up to date" not in clone().stderr


def test_help_is_printed_and_an_unknown_option_is_refused(clone):
    assert "usage" in clone("--help").stdout
    assert "--hlep" in clone("--hlep", code=2).stderr
    assert not (clone.root / ".venv").exists()


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
