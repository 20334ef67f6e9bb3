"""AveragedSGD against torch's SGD and ASGD; options of nt_asgd reach it, or are refused."""

import copy
import math

import pytest
import torch
from fairseq import optim
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from highrank_plugins.optim.averaged_sgd import AveragedSGD, non_monotone_trigger
from tests.fairseq_cli import CommandFailed
from tests.stream_corpus import train_streams
from tests.tasks.built import configure
from tests.trainings import last

LRS = [0.3, 0.7, 0.2, 0.5, 0.9, 0.4]


def parameters():
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]


def groups(params):
    return [{"params": params[:1]}, {"params": params[1:], "weight_decay": 0.3}]


def set_rate(optimizer, lr):  # the second group has a tenth of it
    for scale, group in zip((1, 0.1), optimizer.param_groups, strict=True):
        group["lr"] = lr * scale


def take_steps(optimizer, params, lrs, seed=0):
    """Take steps, each with new random gradients."""
    draw = torch.Generator().manual_seed(seed)
    for lr in lrs:
        optimizer.zero_grad()
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw)
        set_rate(optimizer, lr)
        optimizer.step()


def pair(reference, **options):
    """Return our optimizer and torch's, on equal parameters."""
    own, others = parameters(), parameters()
    ours = AveragedSGD(groups(own), lr=LRS[0], weight_decay=0.01, **options)
    theirs = reference(groups(others))
    for optimizer in (ours, theirs):
        set_rate(optimizer, LRS[0])
    return ours, own, theirs, others


def asgd(parts):
    return torch.optim.ASGD(parts, lr=LRS[0], lambd=0, t0=0, weight_decay=0.01)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def averages(optimizer, params):
    return [optimizer.state[p]["ax"] for p in params]


def test_the_optimizer_is_sgd_before_averaging():
    ours, own, sgd, others = pair(lambda p: torch.optim.SGD(p, lr=1, weight_decay=0.01))
    take_steps(ours, own, LRS)
    take_steps(sgd, others, LRS)
    assert equal(own, others)


@pytest.mark.parametrize("averaging", [False, True])
def test_a_group_with_adam_moves_as_under_torchs_adam(averaging):
    own, others = parameters(), parameters()
    parts = [{"params": own[:1]}, {"params": own[1:], "by_adam": True}]
    ours = AveragedSGD(parts, lr=LRS[0], at_epoch=0 if averaging else None)
    sgd, adam = torch.optim.SGD(others[:1], lr=LRS[0]), torch.optim.Adam(others[1:], lr=LRS[0])
    ours.before_epoch(1)
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        for mine, theirs in zip(own, others, strict=True):
            mine.grad = torch.randn(mine.shape, generator=draw)
            theirs.grad = mine.grad.clone()
        for optimizer in (ours, sgd, adam):
            optimizer.step()
        if seed == 2:  # a checkpoint in between
            ours.before_save()
            saved = copy.deepcopy(ours.state_dict())
            ours = AveragedSGD(parts, lr=1.0, at_epoch=0 if averaging else None)
            ours.load_state_dict(saved)
    torch.testing.assert_close(own, others, rtol=1e-5, atol=1e-6)


def test_averaging_equals_torchs_and_evaluation_on_averages_does_not_disturb_it():
    ours, own, theirs, others = pair(asgd, at_epoch=0)
    ours.before_epoch(1)
    take_steps(ours, own, LRS[:3])
    take_steps(theirs, others, LRS[:3])
    assert equal(own, others)
    ours.before_validation()
    ours.before_save()
    assert equal(own, averages(theirs, others))
    with pytest.raises(RuntimeError, match="zero_grad"):
        ours.step()
    take_steps(ours, own, LRS[3:], seed=9)
    take_steps(theirs, others, LRS[3:], seed=9)
    assert equal(own, others)
    assert equal(averages(ours, own), averages(theirs, others))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_loaded_optimizer_continues_exactly(swapped):
    ours, own, *_ = pair(asgd, at_epoch=0)
    ours.before_epoch(1)
    take_steps(ours, own, LRS[:3])
    if swapped:
        ours.before_save()
    saved = copy.deepcopy(ours.state_dict())
    again = [nn.Parameter(p.detach().clone()) for p in own]
    resumed = AveragedSGD(groups(again), lr=1.0, weight_decay=0.01, at_epoch=0)
    resumed.load_state_dict(saved)
    for optimizer, params in ((ours, own), (resumed, again)):
        take_steps(optimizer, params, LRS[3:], seed=4)
    assert equal(own, again)
    assert equal(averages(ours, own), averages(resumed, again))


def epochs_until_averaging(losses, **options):
    optimizer = AveragedSGD(parameters(), lr=1.0, **options)
    for epoch, loss in enumerate(losses, start=1):
        optimizer.before_epoch(epoch)
        if optimizer.averaging:
            return epoch
        optimizer.after_epoch(loss)
    return None


def test_averaging_begins_in_the_epoch_after_the_trigger():
    losses = [9, 3, 8, 8, 8, 1, 1, 9]  # the trigger's table says 5
    assert epochs_until_averaging(losses, nonmono=2) == 6
    assert epochs_until_averaging(losses, nonmono=2, at_epoch=3) == 4
    assert epochs_until_averaging(losses, nonmono=9) is None
    assert non_monotone_trigger(losses, 2) == 5 and non_monotone_trigger([1, *[2] * 9]) == 7
    assert non_monotone_trigger([1, 2], 0) == 2 and non_monotone_trigger([1, 1], 0) is None


def test_a_missing_validation_is_an_error():
    optimizer = AveragedSGD(parameters(), lr=1.0)
    optimizer.before_epoch(4)  # a training run that starts again from here
    with pytest.raises(ValueError, match=r"seen 0 .* before epoch 5.*--asgd-at-epoch"):
        optimizer.before_epoch(5)
    AveragedSGD(parameters(), lr=1.0, at_epoch=9).before_epoch(5)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_diverged_run_is_an_error(loss):
    with pytest.raises(FloatingPointError, match="diverged"):
        AveragedSGD(parameters(), lr=1.0).after_epoch(loss)


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(0, 5))
def test_every_epoch_is_judged_by_what_came_before_it(losses, n):
    fires = (e for e in range(n + 2, len(losses) + 1) if losses[e - 1] > min(losses[: e - 1 - n]))
    assert non_monotone_trigger(losses, n) == next(fires, None)


def test_losses_that_the_trigger_cannot_judge_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        non_monotone_trigger([1.0], -1)
    with pytest.raises(ValueError, match="epoch 2 is NaN"):
        non_monotone_trigger([1.0, math.nan], 5)


def build(*words):
    """Build the optimizer of `fairseq-train data …` with one parameter."""
    return optim.build_optimizer(configure("data", *words).optimizer, [torch.nn.Parameter()])


def test_options_reach_the_optimizer():
    words = "--lr 7 --weight-decay 0.1 --nonmono 3 --asgd-at-epoch 9".split()
    inner = build(*words).optimizer
    assert (inner.nonmono, inner.at_epoch) == (3, 9)
    (group,) = inner.param_groups
    assert (group["lr"], group["weight_decay"]) == (7, 0.1)
    assert (group["t0"], group["lambd"]) == (0, 0)
    default = build().optimizer
    assert (default.nonmono, default.at_epoch) == (5, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--disable-validation"], "needs one per epoch: remove --disable-validation"),
        (["--lr", "1e30", "--clip-norm", 0], "Nan/Inf: the training run has diverged; lower --lr"),
    ],
    ids=["no validation", "not a number"],
)
def test_runs_that_cannot_continue_name_the_remedy(words, message, stream_data, tmp_path):
    with pytest.raises(CommandFailed, match=message):
        train_streams(stream_data, tmp_path, "--max-epoch", 2, *words)


STOP = ["--asgd-at-epoch", 0, "--nonmono", 0, "--nonmono-stop", "--lr", 30, "--max-epoch", 12]


def test_a_run_ends_when_its_losses_stop_falling(stream_data, tmp_path):
    """End as finetuning does, and change nothing when started again."""
    train_streams(stream_data, tmp_path, *STOP)
    before = last(tmp_path).read_bytes()
    state = torch.load(last(tmp_path), weights_only=True)
    losses = state["last_optimizer_state"]["nt_asgd"]["losses"]
    assert len(losses) < 12
    assert non_monotone_trigger(losses, 0) == len(losses)
    assert "nothing left to train" in train_streams(stream_data, tmp_path, *STOP).output
    assert last(tmp_path).read_bytes() == before
