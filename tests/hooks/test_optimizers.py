"""Parameters keep their own rate; schedulers and early stopping resume."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import optim
from torch import nn

from highrank_plugins import register
from highrank_plugins.hooks.optimizers import own_rate, require_found, set_own_rate
from tests.compat.conftest import config, train
from tests.trainings import same

register()


def parameters(by_adam=False):
    ordinary, special = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    set_own_rate(special, 0.02, by_adam)
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
    built = optimizer(params, "--optimizer", name, "--weight-decay", 0.3)
    ordinary, special = built.param_groups
    assert ordinary.keys() == special.keys() and special["weight_decay"] == 0.3
    assert step(built, *params) == pytest.approx([20, 0.02], rel=1e-5)
    for lr in (1e-3, 20, 7) if name == "nt_asgd" else ():
        built.set_lr(lr)
        assert built.get_lr() == lr and built.param_groups[1]["lr"] == pytest.approx(lr / 1000)
    if name == "sgd":  # a model of the user may set a rate as fairseq does
        params = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]
        for param, own in zip(params, ({}, {"lr": 0.02}), strict=True):
            param.optim_overrides = {"optimizer": own}
        built = optimizer(params, "--optimizer", "sgd")
        assert step(built, *params) == pytest.approx([20, 0.02], rel=1e-5)


def test_adam_for_the_head_needs_an_optimizer_that_has_it():
    ordinary, special = parameters(by_adam=True)
    built = optimizer((ordinary, special), "--optimizer", "nt_asgd")
    special.grad, ordinary.grad = torch.tensor([1e-3, 7.0]), torch.full((3,), 0.5)
    built.step()
    assert special.tolist() == pytest.approx([-0.02, -0.02], rel=1e-4)
    assert ordinary.tolist() == pytest.approx([-10.0] * 3)
    with pytest.raises(ValueError, match="--head-adam-lr: this optimizer has no groups with Adam"):
        optimizer((ordinary, special), "--optimizer", "sgd")


def test_float32_copies_of_half_precision_parameters_have_the_rate_too():
    ordinary, special = parameters()
    special.data = special.data.half()
    ordinary.data = ordinary.data.half()
    copies = optim.FP16Optimizer.build_fp32_params(None, [ordinary, special], flatten=False)
    assert [own_rate(p) for p in copies] == [None, (0.02, False)]


def test_a_rate_of_zero_and_an_optimizer_that_lost_the_group_are_refused():
    with pytest.raises(ValueError, match="needs --lr above 0"):
        optimizer(parameters(), "--optimizer", "sgd", "--lr", 0)
    flat = optimizer([nn.Parameter(torch.zeros(5))], "--optimizer", "sgd")
    assert len(flat.param_groups) == 1
    with pytest.raises(ValueError, match="--fp16-no-flatten-grads"):
        require_found(SimpleNamespace(model=nn.ParameterList(parameters()), optimizer=flat))


def test_a_run_keeps_its_groups_when_it_resumes(data, tmp_path):
    layer = {"arch": "transformer_plif", "head_plif_knots": 50, "lr_scheduler": "inverse_sqrt"}
    for updates, rate, more in ((2, 0.5, ()), (4, 0.5, ()), (6, 0.25, ["--allow-changed-options"])):
        state = train(data, tmp_path, *more, **layer, head_plif_lr=rate, max_update=updates)
        ordinary, slopes = state["last_optimizer_state"]["param_groups"]
        assert len(slopes["params"]) == 1
        assert slopes["lr"] / ordinary["lr"] == pytest.approx(rate / 1e-2)


# hardly any epoch is progress
RISING = {"lr": 0.5, "lr_scheduler": "reduce_lr_on_plateau", "lr_threshold": 0.9, "max_update": 999}


@pytest.mark.parametrize("patience", [0, 1])
def test_a_resumed_run_equals_an_uninterrupted_one(data, tmp_path, patience):
    more = RISING | {"lr_shrink": 0.5, "lr_patience": patience}
    unbroken = train(data, tmp_path / "a", max_epoch=6, **more)
    for epochs in (2, 3, 6):
        resumed = train(data, tmp_path / "b", max_epoch=epochs, **more)
    one, other = (s["last_optimizer_state"]["param_groups"][0]["lr"] for s in (unbroken, resumed))
    assert one == other < 0.5
    assert same(resumed["model"], unbroken["model"])


def test_patience_keeps_counting_and_ends_the_run_for_good(data, tmp_path):
    unbroken = train(data, tmp_path / "a", max_epoch=50, patience=3, **RISING)
    epochs = unbroken["extra_state"]["train_iterator"]["epoch"]
    assert 4 <= epochs < 50
    for bound in epochs - 2, 50, 50:
        resumed = train(data, tmp_path / "b", max_epoch=bound, patience=3, **RISING)
    assert resumed["extra_state"]["train_iterator"]["epoch"] == epochs
    assert same(resumed["model"], unbroken["model"])
