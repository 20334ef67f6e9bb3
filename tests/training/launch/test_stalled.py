"""A stopped or killed process ends the training run in time, is named, and leaves stacks."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.training.launch.test_trainings import process_of, start, wait_for_update

STALL_SECONDS = 6
pytestmark = [pytest.mark.timeout(300)]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_lost_process_ends_the_other(mt_data, tmp_path, number):
    folder = tmp_path / "two"
    options = ["--processes", 2, "--stall-timeout", STALL_SECONDS]
    training = start(mt_data, folder, *options, updates=100_000)
    wait_for_update(folder / "logs" / "rank0.log", 5, training)
    ranks = [process_of(rank, folder) for rank in (0, 1)]
    began = time.monotonic()
    os.kill(ranks[1], number)
    output = training.communicate(timeout=STALL_SECONDS + 60)[0]
    took = time.monotonic() - began
    assert training.returncode not in (0, 75)
    assert took < STALL_SECONDS + 30
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    last_line = output.splitlines()[-1]
    assert "start the same command again: it resumes from the last checkpoint" in last_line
    if number == signal.SIGKILL:
        assert "rank 1 was killed by signal 9 (SIGKILL): is the machine out of memory?" in last_line
        return
    assert training.returncode == 128 + signal.SIGABRT
    found = re.search(
        r"rank 0 \(process (\d+)\) has made no progress for (\d+) s, \w+ after update \d+: a "
        r"signal has stopped rank 1 \(process (\d+)\) \(SIGSTOP or SIGTSTP\); the stacks are",
        last_line,
    )  # fmt: skip
    assert found and [int(found[1]), int(found[3])] == ranks and int(found[2]) >= STALL_SECONDS
    for rank in (0, 1):
        log = (folder / "logs" / f"rank{rank}.log").read_text(errors="replace")
        assert re.search(r"File .*/fairseq(_cli)?/.*\.py., line \d+ in \w+", log), rank
