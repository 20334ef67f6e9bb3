"""`highrank doctor`: what it finds here, and what it says when something, or a disk, is wrong."""

import subprocess
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from highrank_plugins.cli import doctor
from highrank_plugins.common import files
from highrank_plugins.losses import trust
from highrank_plugins.losses.kernels.cpp import build
from tests.cli import highrank, refused


def test_this_environment_is_complete():
    command = [Path(sys.executable).parent / "highrank", "doctor"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    *rows, last = result.stdout.splitlines()
    shown = {row[:18].strip(): row[18:] for row in rows}
    assert last == "Nothing required is missing."
    for name in ("torch", "ve-fairseq", "highrank_plugins"):
        assert shown[name] == metadata.version(name)
    number, program = shown["python"].split()
    assert number == ".".join(map(str, sys.version_info[:3]))
    assert Path(program).samefile(sys.executable)  # perhaps by its longer name
    cores, memory, _ = shown["cores, memory"].split()
    assert int(cores[:-1]) >= 1 and float(memory) > 0 and float(shown["free disk"].split()[0]) > 0
    assert shown["CPU kernels"].endswith(".so") or "compiler" in shown["CPU kernels"]
    assert {"CUDA devices", "triton"} <= shown.keys()


def test_problems_of_a_package_are_explained(monkeypatch):
    for requirement, words in (
        ("no-such-distribution>=1", "missing"), ("numpy>=1000", "outside >=1000"),
    ):  # fmt: skip
        said = doctor.find(Requirement(requirement)).problem
        assert words in said and doctor.SETUP in said
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.13.0+cpu")
    assert doctor.find(Requirement("packaging>=2,<=2.13.0")).problem is None


@pytest.fixture
def broken_module(monkeypatch, tmp_path):
    """Make a module that comes before the real one and fails; requirements are two small ones."""
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: [
        "packaging", "tqdm", "nothing; extra == 'nothing'", "nobody; python_version < '3'",
    ])  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda name, code: (tmp_path / f"{name}.py").write_text(code)


def test_a_package_that_cannot_be_imported_is_named(broken_module, monkeypatch):
    for code, words in (
        ("raise ValueError('wrong ABI')", "tqdm (ValueError: wrong ABI)"),
        ("import os; os._exit(3)", "tqdm (exit status 3)"),
    ):
        broken_module("tqdm", code)
        assert doctor.check_packages()[-1].problem == f"cannot import {words}; {doctor.SETUP}"
    broken_module("tqdm", "")
    broken_module("fairseq", "raise RuntimeError('another fairseq')")
    *requirements, plugin = doctor.check_packages()
    assert not any(package.problem for package in requirements)
    assert "cannot import highrank_plugins (RuntimeError: another fairseq)" in plugin.problem
    monkeypatch.setattr(doctor.sys, "version_info", (3, 13))
    *_, plugin = doctor.check_packages()
    assert plugin.problem is None and "the layers work alone" in plugin.note


def test_a_problem_makes_the_exit_code_1(monkeypatch):
    broken = doctor.Package("numpy", None, "missing")
    monkeypatch.setattr(doctor, "check_packages", lambda: [broken])
    done = highrank("doctor")
    assert done.exit_code == 1 and "PROBLEM  numpy: missing" in done.output
    assert "Nothing required" not in done.output


@pytest.mark.cpp
def test_all_kernels_are_tried_again(monkeypatch):
    monkeypatch.setattr(trust, "verdicts", {})
    monkeypatch.setattr(doctor, "FUNCTIONS", ("identity", "gss"))
    monkeypatch.setattr(doctor, "CLASSES", 40)
    compare = trust._Trial.compare

    def sometimes(trial):
        is_wrong = trial.function.family == "gss" and trial.plan.smooth and trial.has_tree
        return trust.Finding("nll has an error of 1", 1, 1e-5) if is_wrong else compare(trial)

    monkeypatch.setattr(trust._Trial, "compare", sometimes)
    for _ in range(2):  # the second forgets what the first has found
        done, table = highrank("doctor", "--kernels"), {}
        assert done.exit_code == 1
        for line in done.output.splitlines():
            table.setdefault(line.split()[0], []).append(line)
        assert len(table["right"]) == 23 and len(table["WRONG"]) == 1
        assert "K=15, M=40" in table["right"][-4] and "1.0e+00 of 1.0e-05" in table["WRONG"][0]
        assert "please report" in table["impl:"][0]
    monkeypatch.setattr(trust._Trial, "compare", compare)
    assert highrank("doctor", "--kernels").exit_code == 0


def test_a_missing_compiler_is_named_and_hides_no_kernels_of_a_gpu(monkeypatch):
    """End with exit code 1 where no kernel could be tried."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    verdicts = mock.MagicMock()  # which stay when they are cleared
    verdicts.values.return_value = verdicts.items.return_value = []
    monkeypatch.setattr(trust, "verdicts", verdicts)
    build.library.cache_clear()
    said, is_well = doctor.try_kernels()
    assert said[0].startswith("not tried  'cpp': no-such-compiler cannot be run") and not is_well
    verdicts.items.return_value = [(("", "of triton"), (trust.RIGHT, 1e-7, 1e-5))]
    verdicts.values.return_value = [(trust.RIGHT, 1e-7, 1e-5)]
    assert doctor.try_kernels() == ([*said, "right  1.0e-07 of 1.0e-05  of triton"], True)
    build.library.cache_clear()


def test_this_file_system_supports_saves(tmp_path):
    done = highrank("doctor", tmp_path, "--faults")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and len(lines) == 3, done.output
    assert all(line.startswith("survived") for line in lines)
    assert not list(tmp_path.iterdir())
    refused("no such file or directory", "doctor", tmp_path / "none", "--faults")


def copied(source, target):
    content = Path(source).read_bytes()
    Path(target).write_bytes(b"")
    time.sleep(0.001)
    Path(target).write_bytes(content)


def failing(*_):
    raise PermissionError(1, "Operation not permitted")


def locking(is_locked):
    return contextmanager(lambda folder: iter([is_locked]))


@pytest.mark.parametrize(
    ("place", "name", "broken", "said"),
    [
        (doctor, "locked", locking(True), "a second process could lock the folder as well"),
        (doctor, "locked", locking(False), "no process could lock the folder"),
        (doctor.os, "replace", copied, "times torn"),
        (files.os, "fsync", failing, "Operation not permitted"),
        (doctor.os, "link", failing, "hard links: no. Each save copies the checkpoint: plan"),
    ],
)
def test_what_a_disk_lacks_is_found(place, name, broken, said, tmp_path, monkeypatch):
    monkeypatch.setattr(place, name, broken)
    done = highrank("doctor", tmp_path, "--faults")
    (line,) = (line for line in done.stdout.splitlines() if said in line)
    survives = name == "link"  # a copy takes its place
    assert line.startswith("survived" if survives else "FAILED")
    assert done.exit_code == (0 if survives else 1)
    assert not list(tmp_path.iterdir())
