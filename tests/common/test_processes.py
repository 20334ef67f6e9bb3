"""Children import what their parent imports and end with it; processes are counted; maps."""

import os
import re
import select
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

import highrank_plugins
from highrank_plugins.common import processes
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.processes import batches, ordered_map, processes_started, python
from highrank_plugins.common.user_error import UserError
from highrank_plugins.training.launch.plan import Plan, rank_words
from highrank_plugins.training.launch.torchrun import torchrun_words
from tests.models.small import build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["tqdm", "torch"])
def test_files_of_the_working_directory_take_no_modules_place(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.chdir(ROOT)
    assert python("-m", "a") == [sys.executable, "-m", "a"]  # a checkout starts its own
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    code = f"import importlib.util as u; print(u.find_spec({name!r}).origin)"
    found = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
    assert str(tmp_path) not in found.stdout
    plan = Plan(("fairseq-train",), tmp_path, 2, rendezvous="a:1")
    words = torchrun_words(plan)
    assert words[words.index("--no-python") + 1 :] == rank_words(plan)
    assert words[1:3] == rank_words(plan)[1:3] == ["-P", "-m"]
    words = python("-m", "highrank_plugins.training.launch.rank", "--help")
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert "stranger" not in done.stderr


CHILD = """
import sys, time
from highrank_plugins.common import processes
if sys.argv[1] == "no signal":
    processes.ctypes.CDLL = lambda name: type("", (), {"prctl": print})
if sys.argv[1] == "late":
    time.sleep(1)  # the launcher has ended before the child says that it wants to end with it
processes.end_with_parent(int(sys.argv[2]))
print("here", flush=True)
while True:
    pass
"""
LAUNCHER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("when", ["usual", "no signal", "late"])
def test_a_child_ends_within_seconds_of_its_killed_launcher(when):
    """The launcher stays a zombie, as one whose parent is busy."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, CHILD, when], stdout=subprocess.PIPE, text=True
    )
    child = int(launcher.stdout.readline())
    if when != "late":
        while "here" not in launcher.stdout.readline():
            pass
    launcher.send_signal(signal.SIGKILL)
    end = os.pidfd_open(child)
    assert select.select([end], [], [], 20)[0], "the child goes on"
    launcher.wait()


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}
SEVERAL = [
    {"RANK": "0", "WORLD_SIZE": "4"},
    {**TORCHRUN, "WORLD_SIZE": "4"},
    *({name: "4"} for name in processes._SIZES),
    *({name: "3"} for name in processes._RANKS),
    {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"},
    {"RANK": "0", "WORLD_SIZE": "1", "PMI_SIZE": "4"},
    {"TORCHELASTIC_RUN_ID": "left", "OMPI_COMM_WORLD_SIZE": "4"},
    {"HIGHRANK_LAUNCHED": "7", "RANK": "0", "PMI_SIZE": "4"},
    {"PBS_TASKNUM": "2", "PBS_NODEFILE": "nodes"},
]
ALONE = [
    {},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
    {"RANK": "0", "WORLD_SIZE": ""},
    {"PBS_TASKNUM": "1", "PBS_NODENUM": "0", "PBS_NODEFILE": "nodes"},  # a batch script
    {**TORCHRUN, "WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"},  # a torchrun in each task
    {"HIGHRANK_LAUNCHED": "7", "RANK": "0", "WORLD_SIZE": "1", "PMI_SIZE": "4"},
]


def test_processes_started_together_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("node").write_text("a\n")
    Path("nodes").write_text("a\na\nb\nb\n")  # the file of PBS for four on two machines
    for environment in SEVERAL:
        count, variable = processes_started(environment)
        assert count == 4 and variable in environment, environment
    for environment in ALONE:
        assert processes_started(environment)[0] == 1, environment
    assert processes_started({"PMI_SIZE": "9" * 5000})[0] > 1
    monkeypatch.setenv("PMI_SIZE", "2")
    said = "(PMI_SIZE=2): start this command once, or pass --nodes N, or unset PMI_SIZE"
    with pytest.raises(UserError, match=re.escape(said)):
        Plan(("fairseq-train",), tmp_path).check_meeting()
    Plan(("fairseq-train",), tmp_path, 2, rendezvous="a:1").check_meeting()


def slow_when_even(number: int) -> tuple[int, int]:
    time.sleep(0.02 * (number % 2 == 0))
    return number, os.getpid()


def fails_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def dies(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("count", [1, 2])
def test_a_map_keeps_the_order_of_its_items_and_an_error_ends_it(count):
    results = list(ordered_map(slow_when_even, range(20), count))
    assert [number for number, _ in results] == list(range(20))
    assert (os.getpid() in {pid for _, pid in results}) == (count == 1)
    with pytest.raises(ValueError, match="three"):
        list(ordered_map(fails_at_three, range(100), count))
    items = iter(range(1000))
    results = ordered_map(slow_when_even, items, count)
    next(results)
    assert next(items) < 20  # not all are read at once
    results.close()
    if count > 1:
        with pytest.raises(OSError, match="one of 2 processes was killed"):
            list(ordered_map(dies, range(3), count))
    for number in (0, 1, 4, 5):
        found = list(batches(range(number), 2))
        assert [n for batch in found for n in batch] == list(range(number))
        assert all(len(batch) == 2 for batch in found[:-1])


ENDLESS = """
import itertools, time
from highrank_plugins.common.processes import ordered_map
for _ in ordered_map(time.sleep, itertools.repeat(0.05), 2):
    print(flush=True)
"""


def test_no_process_outlives_a_killed_main_process():
    """Whoever reads what it prints, such as a recipe's `tee`, sees the end."""
    main = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE)
    assert main.stdout is not None and main.stdout.readline()
    main.kill()
    main.stdout.read()  # ends when no process holds the pipe


# -- what is replaced can still be scripted; what is deferred still works --


def test_a_stock_generator_can_be_scripted(mt_data):
    highrank_plugins.register()
    assert hasattr(EnsembleModel.forward_decoder, "highrank_patch")
    built = build(mt_data, "transformer_tiny", "--criterion", "cross_entropy")
    dictionary, sample = built.task.target_dictionary, built.batch()
    generator = SequenceGenerator([built.model.eval()], dictionary, beam_size=2, max_len_b=5)
    want = generator.generate([built.model], sample)
    found = torch.jit.script(generator)({"net_input": sample["net_input"]})
    for ours, theirs in zip(found, want, strict=True):
        assert ours[0]["tokens"].equal(theirs[0]["tokens"])


def test_a_running_script_gets_the_replacement_of_its_module(monkeypatch, tmp_path):
    modules = [types.ModuleType(name) for name in ("fairseq_cli.toy", "__main__", "other")]
    for module, name in zip(modules, ("toy.py", "toy.py", "other.py"), strict=True):
        module.__file__ = str(tmp_path / name)
        exec("def main(): return 'stock'\ndef command(): return main()", vars(module))
    owner, script, other = modules
    monkeypatch.setitem(sys.modules, "__main__", script)
    replaces(owner, "main")(lambda stock: f"ours of {stock()}")
    replaces(other, "main")(lambda stock: "not theirs")
    assert owner.command() == script.command() == "ours of stock"


PROGRAM = """
import importlib.util
import sys
from highrank_plugins.common.patching import import_fairseq
class Library:
    # looks for scikit-learn while fairseq is imported, as a library that fairseq imports may
    def find_spec(self, name, path=None, target=None):
        if name == "fairseq.tasks":
            assert importlib.util.find_spec("sklearn") is not None
            print("looked")
sys.meta_path.insert(0, Library())
import_fairseq()
assert not {"sklearn", "sklearn.metrics", "scipy.stats"} & sys.modules.keys()
import numpy as np
from fairseq.criterions import sentence_prediction as criterion
from fairseq.tasks import audio_classification as task
labels, guesses = np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1])
assert abs(criterion.acc_and_f1(guesses, labels)["f1"] - 0.8) < 1e-9
assert abs(criterion.pearson_and_spearman(guesses, labels)["pearson"] - 0.5773502692) < 1e-9
assert task.sklearn_metrics.roc_curve(labels, guesses)[0][-1] == 1
import sklearn.metrics, scipy.stats
assert type(sklearn.metrics).__name__ == "module" and scipy.stats.norm.cdf(0) == 0.5
"""


def test_statistics_are_imported_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "looked\n", done.stderr
