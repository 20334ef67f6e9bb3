"""Test compat/safe_globals.py."""

import argparse
import functools
import io
import os
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed.utils import _split_tensors_from_obj


def through_torch(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer)


VALUES = [
    argparse.Namespace(arch="lstm", layers=2, betas=(0.9, 0.98)),
    *(np.float64(1.5), np.int64(3), np.float32(0.5), np.bool_(True), np.arange(3)),
]


@pytest.mark.parametrize("value", VALUES)
def test_values_that_fairseq_stores_can_be_loaded(value):
    assert np.all(through_torch(value) == value)


def test_the_state_that_rank_0_broadcasts_can_be_loaded(translator):
    state = checkpoint_utils.load_checkpoint_to_cpu(str(translator))
    state = _split_tensors_from_obj(state, [])
    received = through_torch(state)
    assert received["cfg"] == state["cfg"]
    assert received["model"] == state["model"]  # placeholders


class Call:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, getattr, functools.partial, np.load])
def test_functions_are_still_refused(function, tmp_path):
    with pytest.raises(UnpicklingError, match=r"[Uu]nsupported"):
        through_torch(Call(function, f"touch {tmp_path}/executed"))
    with pytest.raises(UnpicklingError, match=r"Unsupported|ObjectDType"):
        through_torch(np.array([None], dtype=object))
    assert not list(tmp_path.iterdir())
