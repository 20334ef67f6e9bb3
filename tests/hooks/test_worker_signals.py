"""Test hooks/worker_signals.py."""

import os
import signal
import subprocess
import time

import pytest
import torch
from torch.utils.data import DataLoader

import highrank_plugins

highrank_plugins.register()


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


def send_from_elsewhere(name: str, pid: int) -> None:
    subprocess.run(["bash", "-c", f"kill -s {name} {pid}"], check=True)


def test_a_worker_ignores_signals_from_other_processes():
    batches = iter(DataLoader(Slow(), batch_size=1, num_workers=1))
    seen = [int(next(batches))]
    worker = batches._workers[0]
    for name in ("INT", "TERM", "USR1", "HUP"):
        send_from_elsewhere(name, worker.pid)
        seen.append(int(next(batches)))
    seen += [int(batch) for batch in batches]
    assert seen == list(range(8))
    worker.join(20)
    assert worker.exitcode == 0


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_the_parent_can_end_a_worker(start):
    loader = DataLoader(Slow(), batch_size=1, num_workers=1, multiprocessing_context=start)
    batches = iter(loader)
    next(batches)
    worker = batches._workers[0]
    os.kill(worker.pid, signal.SIGSTOP)  # or it might end by itself
    worker.terminate()
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(20)
    assert worker.exitcode == 0
    batches._shutdown_workers()


def test_the_users_own_worker_init_fn_is_kept():
    assert DataLoader(Slow(), num_workers=1, worker_init_fn=print).worker_init_fn is print
