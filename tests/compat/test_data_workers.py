"""No process of a data loader outlives its epoch, or ends before its training run."""

import gc
import multiprocessing
import os
import signal
import subprocess
import time
import weakref

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch.utils.data import DataLoader


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_worker_obeys_its_parent_and_ignores_signals_from_other_processes(start):
    loader = DataLoader(Slow(), num_workers=1, multiprocessing_context=start)
    batches = iter(loader)
    seen = [int(next(batches))]
    worker = batches._workers[0]
    for name in ("INT", "TERM", "USR1", "HUP"):
        subprocess.run(["bash", "-c", f"kill -s {name} {worker.pid}"], check=True)
        seen.append(int(next(batches)))
    assert seen == list(range(5))
    os.kill(worker.pid, signal.SIGSTOP)  # or it might end by itself
    worker.terminate()
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(20)
    assert worker.exitcode == 0
    batches._shutdown_workers()
    assert DataLoader(Slow(), num_workers=1, worker_init_fn=print).worker_init_fn is print


class Numbers(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


@pytest.fixture
def no_garbage_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("buffered", [0, 2])
def test_workers_end_when_their_iterator_is_dropped(buffered, no_garbage_collection):
    for epoch in (1, 2):
        batches = EpochBatchIterator(
            Numbers(), list, [[3, 1], [2]], num_workers=1, epoch=epoch, buffer_size=buffered
        )
        seen = list(batches.next_epoch_itr())
        assert sorted(seen) == [[2], [3, 1]]
    del batches
    deadline = time.monotonic() + 20  # the thread that fills the buffer lets go of the loader last
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


def test_a_reused_loader_yields_the_batches_of_its_epoch():
    batches = EpochBatchIterator(
        Numbers(), list, [[i] for i in range(20)], num_workers=1, reuse_dataloader=True
    )
    first, second = (list(batches.next_epoch_itr()) for _ in range(2))
    assert first != second and sorted(first) == sorted(second)


def test_a_missing_option_keeps_no_variable_alive(no_garbage_collection):
    options = OmegaConf.structured(TranslationConfig())

    def ask():
        batches = Numbers()
        assert getattr(options, "reuse_dataloader", True) is True
        return weakref.ref(batches)

    assert ask()() is None
