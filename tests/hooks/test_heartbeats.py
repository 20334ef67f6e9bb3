"""Test hooks/heartbeats.py; common/test_heartbeat.py tests what beats are for."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest

from highrank_plugins.common import heartbeat
from highrank_plugins.hooks import trainer, training_loop
from tests.compat.conftest import run_training, translation_options
from tests.free_port import free_port
from tests.training.launch.trainings import command

PACKAGE = Path(heartbeat.__file__).parents[1]
STALL = 5


@pytest.fixture
def beats(monkeypatch):
    """Record the beats of this process: phase and number of updates, None where not told."""
    seen = []

    def beat(phase=None, updates=None):
        seen.append((phase, updates))

    for module in (trainer, training_loop):
        monkeypatch.setattr(module, "beat", beat)
    return seen


def test_each_phase_of_two_epochs_shows_signs_of_life(data, tmp_path, beats):
    changed = {"--max-update": 0, "--max-epoch": 2}
    state = run_training(data, tmp_path, *translation_options(**changed))
    phases = [phase for phase, _ in groupby(phase for phase, _ in beats if phase is not None)]
    epoch = ["training", "validating", "training", "saving", "training"]
    between = "preparing an epoch"  # also of the epoch that is not trained any more
    assert phases == [*epoch, between, *epoch, between, "ending"]
    updates = [updates for _, updates in beats if updates is not None]
    last = state["last_optimizer_state"]["state"][0]["step"]
    assert updates == list(range(1, int(last) + 1))


def test_batches_and_sums_are_signs_of_life(data, tmp_path, beats):
    run_training(data, tmp_path, *translation_options(**{"--max-update": 1}))
    validation = beats[beats.index(("validating", None)) :]
    within = validation[1 : validation.index(("training", None))]
    assert within
    assert set(within) == {(None, None)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stopped_process_ends_the_others_of_torchrun(mt_data, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(free_port())]
    script = Path(sys.executable).with_name("fairseq-train")
    words = [*command(mt_data, tmp_path / "two", 100_000)[1:], "--distributed-world-size", "2"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        training = subprocess.Popen(
            [*torchrun, str(script), *words, "--cpu", "--user-dir", str(PACKAGE)],
            stdout=file, stderr=file, env=os.environ | {"HIGHRANK_STALL_TIMEOUT": str(STALL)},
        )  # fmt: skip
    try:
        while "num_updates=5," not in log.read_text():
            assert training.poll() is None, log.read_text()
            time.sleep(0.1)
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
        stopped = int(children[-1])
        os.kill(stopped, signal.SIGSTOP)
        assert training.wait(STALL + 90) not in (0, 75)  # torchrun gives the others 30 s
    finally:
        training.kill()
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    (line,) = [line for line in log.read_text().splitlines() if "has made no progress" in line]
    assert f"a signal has stopped rank 1 (process {stopped}) (SIGSTOP or SIGTSTP)" in line
    assert re.search(r"^rank 0 .*for \d+ s, (training|validating|saving) after update \d+:", line)
