"""`highrank doctor`: what it finds here; what it says of a disk, of kernels and of numbers."""

import json
import math
import subprocess
import sys
import time
from contextlib import contextmanager
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from highrank_plugins.cli import doctor, numbers
from highrank_plugins.common import files
from highrank_plugins.common.files import read_json
from highrank_plugins.losses import trust
from highrank_plugins.losses.kernels.cpp import build
from highrank_plugins.studies.members import NUMERICS_VERSION
from tests.cli import highrank, refused
from tests.fairseq_cli import attempt


def test_this_environment_is_complete():
    command = [Path(sys.executable).parent / "highrank", "doctor"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    *rows, last = result.stdout.splitlines()
    shown = {row[:18].strip(): row[18:] for row in rows}
    assert last == "Nothing required is missing."
    for name in ("torch", "ve-fairseq", "highrank_plugins"):
        assert shown[name] == metadata.version(name)
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


# -- --numbers: equal where nothing changed, and the place where something did --

KNOWN = read_json(numbers.REFERENCE)
KIND, RUNS = next(iter(KNOWN["kinds"].items()))
RENEW = (
    "numbers of training runs have changed: raise NUMERICS_VERSION in studies/members.py if they "
    "should, and run `highrank doctor --numbers --output highrank_plugins/cli/numbers.json`"
)


@pytest.fixture
def machine(monkeypatch):
    """Return the runs of a machine whose kind is known, to change them; count their repetitions."""
    runs = deepcopy(RUNS)
    monkeypatch.setattr(numbers, "this_kind", lambda: KIND)
    monkeypatch.setattr(numbers, "repeat", lambda: runs)
    return runs


def repeated(*words):
    return highrank("doctor", "--numbers", *words)


def change(runs, title, name, update, text):
    """Replace what a run has of a tensor after an update, counted from 1."""
    (full,) = [one for one in runs if one.startswith(title)]
    digests = runs[full][name].split()
    digests[update - 1] = text
    runs[full][name] = " ".join(digests)


def test_the_reference_is_of_this_version_and_has_every_run():
    assert KNOWN["numerics"] == NUMERICS_VERSION, RENEW
    for kind, runs in KNOWN["kinds"].items():
        assert [title.partition(",")[0] for title in runs] == list(numbers.TRAININGS), kind
        for run in runs.values():
            assert next(iter(run)) == "loss" and len(run) > 10
            assert all(len(text.split()) == numbers.UPDATES for text in run.values())
            losses = [float(one.partition(":")[2]) for one in run["loss"].split()]
            assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


def test_a_run_computes_what_the_reference_says(monkeypatch):
    title = "transformer_mixtape_tiny --head-loss fused"
    monkeypatch.setattr(numbers, "TRAININGS", {title: numbers.TRAININGS[title]})
    found = numbers.repeat()
    expected = KNOWN["kinds"].get(numbers.this_kind())
    assert found[title].keys() == RUNS[title].keys(), RENEW
    assert expected is None or not numbers.first_difference(found[title], expected[title]), RENEW


@pytest.mark.long
@pytest.mark.cpp
def test_this_installation_computes_what_the_reference_says():
    done = attempt("highrank", "doctor", "--numbers")
    assert done.code == 0, f"{RENEW}\n{done.output}"
    if "no reference: " in done.output:
        pytest.skip(done.output.splitlines()[0])
    assert "This installation computes what ours did: " in done.output
    assert done.output.count(": equal\n") >= 4


def test_equal_numbers_and_an_unknown_kind_have_exit_code_0(machine, monkeypatch):
    done = repeated()
    assert done.exit_code == 0
    *runs, last = done.stdout.splitlines()
    assert len(runs) == 5 and all(line.endswith(": equal") for line in runs)
    assert last.endswith(f"5 of 5 training runs are equal bit for bit, on {KIND}")
    (title,) = [title for title in machine if "cpp" in title]
    machine["transformer_lm_sigsoftmax --head-loss cpp, clang 99"] = machine.pop(title)
    done = repeated()
    assert done.exit_code == 0
    assert "--head-loss cpp, clang 99: no reference" in done.stdout
    assert "4 of 5 training runs are equal" in done.stdout
    monkeypatch.setattr(numbers, "this_kind", lambda: "an abacus")
    done = repeated()
    assert done.exit_code == 0 and done.stdout.startswith("no reference: ")


def test_the_first_update_tensor_and_digit_are_named(machine):
    name = [*next(run for title, run in RUNS.items() if "mos" in title)][2]
    norm = RUNS["awd_lstm_lm_mos --head-loss fused"][name].split()[2].partition(":")[2]
    other = float(norm) * (1 + 2e-6)
    change(machine, "awd_lstm_lm_mos", name, 3, f"00000000:{other!r}")
    change(machine, "awd_lstm_lm_mos", "loss", 4, "00000000:1.0")
    run = machine["lstm_softmax --head-loss reference"]
    run["new"] = run.pop("encoder.embed_tokens.weight")
    done = repeated()
    assert done.exit_code == 1
    tensors, line = [line for line in done.stdout.splitlines() if "DIFFERS" in line]
    assert tensors.endswith("DIFFERS at names of tensors: encoder.embed_tokens.weight, new")
    place = f"awd_lstm_lm_mos --head-loss fused: DIFFERS at update 3, norm of {name}, digit "
    assert line.startswith(place) and f"{other!r} here, {norm} in ours" in line
    assert 5 <= int(line.removeprefix(place).partition(":")[0]) <= 7
    assert "other numbers than ours did: 3 of 5 training runs" in done.stdout


def test_numbers_are_added_to_their_file_alone_and_old_ones_dropped(machine, monkeypatch, tmp_path):
    file = tmp_path / "numbers.json"
    assert repeated("--output", file).exit_code == 0
    monkeypatch.setattr(numbers, "this_kind", lambda: "another")
    assert repeated("--output", file).exit_code == 0
    assert json.loads(file.read_text()) == {
        "numerics": NUMERICS_VERSION, "kinds": {KIND: machine, "another": machine},
    }  # fmt: skip
    file.write_text(json.dumps({"numerics": NUMERICS_VERSION - 1, "kinds": {KIND: {}}}))
    repeated("--output", file)
    assert list(json.loads(file.read_text())["kinds"]) == ["another"]
    file = tmp_path / "record.json"
    for text in ('{"metrics": 1}', "[]"):
        file.write_text(text)
        said = f"highrank: {file}: not written by `highrank doctor"
        refused(said, "doctor", "--numbers", "--output", file)
        assert file.read_text() == text
