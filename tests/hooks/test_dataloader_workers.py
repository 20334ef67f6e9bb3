"""hooks/dataloader_workers.py: no process of a data loader outlives its epoch."""

import gc
import multiprocessing
import time
import weakref

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf

import highrank_plugins

highrank_plugins.register()


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
