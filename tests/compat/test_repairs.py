"""The repairs of compat that need no process of their own, by module."""

# -- amp_step --
import argparse
import functools
import importlib
import io
import itertools
import os
import warnings
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import bucket_pad_length_dataset, data_utils, token_block_dataset
from fairseq.distributed.utils import _split_tensors_from_obj
from fairseq.nan_detector import NanDetector
from fairseq.optim.amp_optimizer import AMPOptimizer

import highrank_plugins.compat.amp_step
import highrank_plugins.optim.nt_asgd  # noqa: F401  (importing it registers nt_asgd)
from highrank_plugins.compat import harmless_warnings
from tests.compat.conftest import config, train, transformer

GRADIENT = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture
def scaled_on_a_cpu(monkeypatch):
    scaler = functools.partial(torch.amp.GradScaler, "cpu")
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)


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


def test_an_update_does_not_depend_on_the_loss_scale_unless_it_overflows(scaled_on_a_cpu):
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
    got = data_utils.batch_by_size(  # of any iterable
        iter([0, 1, 2]), num_tokens_fn=lambda i: LENGTHS[i], required_batch_size_multiple=8
    )
    assert [batch.tolist() for batch in got] == [[0, 1, 2]]
    ours = batches(101, 8)
    stock(data_utils, "batch_by_size")
    theirs = batches(101, 8)
    assert len(theirs) == len(ours) - 1
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=False))


# -- harmless_warnings --


def test_a_run_prints_no_warnings_but_others_are_shown(data, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.reload(harmless_warnings)
        train(data, tmp_path)
        assert [str(warning.message) for warning in caught] == []
        warnings.warn("the loss is odd", stacklevel=1)
        assert len(caught) == 1


# -- nan_detector --


def test_a_diverged_translator_is_reported(data, tmp_path):
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        train(data, tmp_path, max_update=9, lr="1e30")


class Nested(torch.nn.Module):
    """Return what encoders return."""

    def forward(self, x):
        return {"out": [2 * x], "states": [], "mask": None}


def test_the_module_with_the_invalid_gradient_is_named(caplog):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Nested())
    for number in 1.0, torch.inf:
        assert "detected" not in caplog.text
        with NanDetector(model):
            model(torch.ones(1, 2))["out"][0].backward(torch.full((1, 2), number))
    assert "Inf detected in output of 1, shape: torch.Size([1, 2]), backward" in caplog.text
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


# -- numpy2 --


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


class Call:
    """Call a function when it is unpickled."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


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


def test_functions_are_still_refused(tmp_path):
    for function in os.system, eval, getattr, functools.partial, np.load:
        with pytest.raises(UnpicklingError, match=r"[Uu]nsupported"):
            through_torch(Call(function, f"touch {tmp_path}/executed"))
    with pytest.raises(UnpicklingError, match=r"Unsupported|ObjectDType"):
        through_torch(np.array([None], dtype=object))
    assert not list(tmp_path.iterdir())
