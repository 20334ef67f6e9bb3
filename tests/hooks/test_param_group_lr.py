"""Test hooks/param_group_lr.py."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import optim
from fairseq.optim import FairseqOptimizer
from torch import nn

from highrank_plugins import register
from highrank_plugins.hooks.optimizers import own_rate, require_found, set_own_rate
from tests.compat.conftest import DECODER, TRANSFORMER, config, run_training

register()


def parameters():
    ordinary, special = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    set_own_rate(special, 0.02)
    return ordinary, special


def optimizer(params, *words):
    """Build the optimizer of a training run with --lr 20."""
    line = ["data", "--arch", "transformer", "--lr", 20, *words]
    return optim.build_optimizer(config("training", *line).optimizer, list(params))


def step(built, *params):
    """Return how far one step moves each parameter, with gradients of 1."""
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.ones_like(p)
    built.step()
    return [(old - p).mean().item() for old, p in zip(before, params, strict=True)]


@pytest.mark.parametrize("name", ["sgd", "nt_asgd", "adam", "adagrad"])
def test_a_parameter_keeps_its_own_rate_with_any_optimizer(name):
    params = parameters()
    built = optimizer(params, "--optimizer", name)
    assert step(built, *params) == pytest.approx([20, 0.02], rel=1e-5)


def test_the_ratio_stays_the_same_under_any_schedule():
    params = parameters()
    built = optimizer(params, "--optimizer", "sgd")
    for lr in (1e-7, 20, 7):
        built.set_lr(lr)
        assert built.get_lr() == lr
        assert step(built, *params) == pytest.approx([lr, lr / 1000], rel=1e-4)


def test_groups_share_all_other_options():
    built = optimizer(parameters(), "--optimizer", "adam", "--weight-decay", 0.3)
    ordinary, special = built.param_groups
    assert ordinary.keys() == special.keys()
    shared = set(ordinary) - {"params", "lr"}
    assert shared and all(ordinary[name] == special[name] for name in shared)
    assert special["weight_decay"] == 0.3


def test_a_zero_rate_has_no_ratio():
    params = parameters()
    with pytest.raises(ValueError, match="needs --lr above 0"):
        optimizer(params, "--optimizer", "sgd", "--lr", 0)


def test_parameters_without_a_rate_of_their_own_are_left_alone():
    built = optimizer([nn.Parameter(torch.zeros(1))], "--optimizer", "sgd")
    assert len(built.param_groups) == 1


def test_float32_copies_of_half_precision_parameters_have_the_rate_too():
    ordinary, special = parameters()
    special.data = special.data.half()
    ordinary.data = ordinary.data.half()
    copies = optim.FP16Optimizer.build_fp32_params(None, [ordinary, special], flatten=False)
    assert [own_rate(p) for p in copies] == [None, 0.02]


def test_an_optimizer_that_lost_the_group_is_refused():
    flat = optimizer([nn.Parameter(torch.zeros(5))], "--optimizer", "sgd")
    with pytest.raises(ValueError, match="--fp16-no-flatten-grads"):
        require_found(SimpleNamespace(model=nn.ParameterList(parameters()), optimizer=flat))


def test_a_run_keeps_its_groups_when_it_resumes(data, tmp_path):
    words = ["--arch", "transformer_plif", *TRANSFORMER, *DECODER, "--max-tokens", 60]
    words += ["--head-plif-knots", 50, "--lr-scheduler", "inverse_sqrt"]
    changed = ["--allow-changed-options"]
    for updates, rate, more in ((2, 0.5, []), (4, 0.5, []), (6, 0.25, changed)):
        last = ["--head-plif-lr", rate, "--max-update", updates, *more]
        state = run_training(data, tmp_path, *words, *last)
        ordinary, slopes = state["last_optimizer_state"]["param_groups"]
        assert len(slopes["params"]) == 1
        assert slopes["lr"] / ordinary["lr"] == pytest.approx(rate / 1e-2)


def test_stock_has_one_rate_for_all(stock):
    stock(optim, "build_optimizer")
    stock(FairseqOptimizer, "set_lr")
    params = parameters()
    built = optimizer(params, "--optimizer", "sgd")
    assert step(built, *params) == pytest.approx([20, 20])
