"""The repairs of compat, by module."""

import argparse
import functools
import gc
import io
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import time
import weakref

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import bucket_pad_length_dataset, data_utils, token_block_dataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import _split_tensors_from_obj
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import DataLoader

import highrank_plugins.compat.amp_step
import highrank_plugins.optim.nt_asgd  # noqa: F401  (importing it registers nt_asgd)
from highrank_plugins.compat.log_lines import NOTE
from tests.compat.conftest import config, train, transformer

GRADIENT = torch.tensor([1.0, 2.0, 3.0])


def updated(scale: float, gradient: torch.Tensor = GRADIENT) -> torch.Tensor:
    """Return zeros after an update with learning rate 1."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    words = transformer(optimizer="nt_asgd", lr=1, fp16_init_scale=scale)
    cfg = config("training", "data", *words)
    optimizer = AMPOptimizer.build_optimizer(cfg, [parameter])
    optimizer.backward((parameter * gradient).sum())
    optimizer.multiply_grads(1.0)
    optimizer.clip_grad_norm(0.0)
    optimizer.step()
    return parameter.detach()


def test_an_update_does_not_depend_on_the_loss_scale_unless_it_overflows(monkeypatch):
    scaler = functools.partial(torch.amp.GradScaler, "cpu")
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)
    for scale in 1, 128, 2**15:
        torch.testing.assert_close(updated(scale), -GRADIENT)
    assert torch.equal(updated(128, torch.tensor([1.0, torch.inf, 3.0])), torch.zeros(3))


# -- dropped_batches --

LENGTHS = np.random.RandomState(1).randint(1, 30, size=200)


def batches(count: int, multiple: int, vectorised: bool = True, **limits):
    order = np.argsort(LENGTHS[:count], kind="stable")
    return data_utils.batch_by_size(
        order,
        num_tokens_fn=lambda i: LENGTHS[i],
        num_tokens_vec=LENGTHS[order] if vectorised else None,
        required_batch_size_multiple=multiple,
        **(limits or {"max_tokens": 200}),
    )


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("limits", [{}, {"max_sentences": 20}, {"max_tokens": 64}], ids=str)
def test_no_sentence_is_lost(multiple, limits):
    for count, vectorised in itertools.product(range(40), (True, False)):
        got = batches(count, multiple, vectorised, **limits)
        assert sorted(i for batch in got for i in batch) == list(range(count))
        assert all(len(batch) for batch in got)
    shapes = np.array([[5, 30], [20, 10]])  # sentences, and their length; given by position
    order, sizes = np.argsort(LENGTHS[:40], kind="stable"), LENGTHS.__getitem__
    got = data_utils.batch_by_size(order, sizes, LENGTHS[order], 200, None, 1, shapes)
    assert sorted(np.concatenate(got)) == list(range(40))


def test_full_batches_equal_those_of_fairseq(stock):
    ours = batches(101, 8)
    stock(data_utils, "batch_by_size")
    theirs = batches(101, 8)
    assert len(theirs) == len(ours) - 1
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=False))


# -- nan_detector --


def test_a_diverged_translator_is_reported(data, tmp_path):
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        train(data, tmp_path, max_update=9, lr="1e30")


def test_the_break_mode_eos_and_buckets_work():
    sentences = [torch.tensor([4, 5, 2]), torch.tensor([6, 2])]
    blocks = token_block_dataset.TokenBlockDataset(
        sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos"
    )
    assert [block.tolist() for block in blocks] == [[4, 5, 2], [6, 2]]
    sizes = [1, 1, 2, 3, 5, 8, 13, 21]
    buckets = bucket_pad_length_dataset.get_buckets(sizes, 3)
    assert buckets.tolist() == data_utils.get_buckets(sizes, 3).tolist() == [2, 5, 21]


# -- safe_globals --


def through_torch(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer)


def test_values_that_fairseq_stores_and_sends_can_be_loaded(translator):
    for value in (
        argparse.Namespace(arch="lstm", layers=2, betas=(0.9, 0.98)),
        *(np.float64(1.5), np.int64(3), np.float32(0.5), np.bool_(True), np.arange(3)),
    ):
        assert np.all(through_torch(value) == value)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(translator))
    state = _split_tensors_from_obj(state, [])
    received = through_torch(state)
    assert received["cfg"] == state["cfg"]
    assert received["model"] == state["model"]  # placeholders


# -- data_workers --


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
        assert sorted(batches.next_epoch_itr()) == [[2], [3, 1]]
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


# -- log_lines --


def test_developer_lines_are_left_out(caplog):
    caplog.set_level(logging.INFO)
    logger, options = logging.getLogger("fairseq_cli.train"), OmegaConf.create({"seed": 1})
    kept = ["training on 2 devices (GPUs/TPUs)", "[en] Dictionary: 9 types"]
    for message in nn.Linear(2, 2), "task: TranslationTask", options, *kept:
        logger.info(message)
    assert caplog.messages == [NOTE, *kept]
    logger.warning("task: TranslationTask")
    caplog.set_level(logging.DEBUG)
    logger.info(options)
    assert caplog.messages[3:] == ["task: TranslationTask", str(options)]
