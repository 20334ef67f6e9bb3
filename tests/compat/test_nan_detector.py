"""Test compat/nan_detector.py."""

import pytest
import torch
from fairseq.nan_detector import NanDetector

from tests.compat.conftest import run_training, translation_options


def test_a_diverged_translator_is_reported(data, tmp_path):
    diverges = translation_options(**{"--max-update": 9, "--lr": "1e30"})
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        run_training(data, tmp_path, *diverges)


class Nested(torch.nn.Module):
    """Return what encoders return."""

    def forward(self, x):
        return {"out": [2 * x], "states": [], "mask": None}


@pytest.mark.parametrize("infinite", [False, True])
def test_the_module_with_the_invalid_gradient_is_named(infinite, caplog):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Nested())
    with NanDetector(model):
        out = model(torch.ones(1, 2))["out"][0]
        out.backward(torch.full((1, 2), torch.inf if infinite else 1.0))
    assert ("Inf detected in output of 1, shape: torch.Size([1, 2]), backward" in caplog.text) == (
        infinite
    )
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())
