"""Test compat/amp_step.py."""

import functools

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from omegaconf import OmegaConf

import highrank_plugins.compat.amp_step
import highrank_plugins.optim.nt_asgd  # noqa: F401  (importing it registers nt_asgd)

GRADIENT = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _scales_on_a_cpu(monkeypatch):
    scaler = functools.partial(torch.amp.GradScaler, "cpu")
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)


def updated(scale: float, gradient: torch.Tensor = GRADIENT) -> torch.Tensor:
    """Return zeros after an update with learning rate 1."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    cfg = OmegaConf.create(
        {
            "common": {"fp16_init_scale": scale, "min_loss_scale": 1e-4},
            "optimizer": {
                "_name": "nt_asgd", "weight_decay": 0.0, "nonmono": 5, "asgd_at_epoch": None,
                "nonmono_stop": False, "fp16": False, "bf16": False, "lr": [1.0],
            },
        }
    )  # fmt: skip
    optimizer = AMPOptimizer.build_optimizer(cfg, [parameter])
    optimizer.backward((parameter * gradient).sum())
    optimizer.multiply_grads(1.0)
    optimizer.clip_grad_norm(0.0)
    optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("scale", [1, 128, 2**15])
def test_an_update_does_not_depend_on_the_loss_scale(scale):
    torch.testing.assert_close(updated(scale), -GRADIENT)


def test_an_overflow_skips_the_update():
    assert torch.equal(updated(128, torch.tensor([1.0, torch.inf, 3.0])), torch.zeros(3))
