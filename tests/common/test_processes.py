"""Children import what their parent imports, and end with it, on a busy machine, too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highrank_plugins.common import processes
from highrank_plugins.common.processes import python
from highrank_plugins.training.launch.plan import Plan, rank_words
from highrank_plugins.training.launch.torchrun import torchrun_words

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["tqdm", "json", "torch", "argparse"])
def test_files_of_the_working_directory_take_no_modules_place(name, tmp_path, monkeypatch):
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    code = f"import importlib.util as u; print(u.find_spec({name!r}).origin)"
    found = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
    assert str(tmp_path) not in found.stdout
    words = python("-m", "highrank_plugins.training.launch.rank", "--help")
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert "stranger" not in done.stderr


def test_a_checkout_that_is_not_installed_starts_its_own_ranks(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.chdir(ROOT)
    assert python("-m", "a") == [sys.executable, "-m", "a"]
    monkeypatch.chdir(ROOT.parent)
    assert python("-m", "a") == [sys.executable, "-P", "-m", "a"]


def test_torchrun_starts_the_ranks_in_the_same_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(("fairseq-train",), tmp_path, 2, rendezvous="a:1")
    words = torchrun_words(plan)
    assert words[words.index("--no-python") + 1 :] == rank_words(plan)
    assert words[1:3] == rank_words(plan)[1:3] == ["-P", "-m"]


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
    until = time.monotonic() + 20
    while alive(child):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child goes on")
        time.sleep(0.1)
    launcher.wait()


def alive(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_the_checkout_is_the_folder_of_the_package():
    assert Path(processes._CHECKOUT, "highrank_plugins", "common", "processes.py").is_file()
