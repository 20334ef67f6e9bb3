"""AveragedSGD against torch's SGD and ASGD; the schedule of Tensor2Tensor by its formula."""

import copy
import math
import re

import pytest
import torch
from fairseq import optim
from fairseq.optim import lr_scheduler
from torch import nn

from highrank_plugins.optim.averaged_sgd import AveragedSGD, non_monotone_trigger
from highrank_plugins.optim.t2t_noam import noam_factor
from tests.fairseq_cli import CommandFailed
from tests.stream_corpus import train_streams
from tests.tasks.built import configure
from tests.trainings import last, same
from tests.trainings import parameters as parameters_of

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


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def averages(optimizer, params):
    return [optimizer.state[p]["ax"] for p in params]


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


def test_steps_and_averages_are_torchs_and_evaluation_on_averages_does_not_disturb_them():
    ours, own, sgd, others = pair(lambda p: torch.optim.SGD(p, lr=1, weight_decay=0.01))
    take_steps(ours, own, LRS)
    take_steps(sgd, others, LRS)
    assert equal(own, others)
    ours, own, theirs, others = pair(
        lambda p: torch.optim.ASGD(p, lr=1, lambd=0, t0=0, weight_decay=0.01), at_epoch=0
    )
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


def test_averaging_begins_in_the_epoch_after_the_trigger():
    losses = [9, 3, 8, 8, 8, 1, 1, 9]  # the trigger's table says 5
    for options, wanted in (
        ({"nonmono": 2}, 6), ({"nonmono": 2, "at_epoch": 3}, 4), ({"nonmono": 9}, None),
    ):  # fmt: skip
        optimizer, first = AveragedSGD(parameters(), lr=1.0, **options), None
        for epoch, loss in enumerate(losses, start=1):
            optimizer.before_epoch(epoch)
            first = first or (epoch if optimizer.averaging else None)
            optimizer.after_epoch(loss)
        assert first == wanted
    assert non_monotone_trigger(losses, 2) == 5 and non_monotone_trigger([1, *[2] * 9]) == 7
    assert non_monotone_trigger([1, 2], 0) == 2 and non_monotone_trigger([1, 1], 0) is None
    assert non_monotone_trigger([], 0) is None and non_monotone_trigger([3, 2, 1, 1.5], 1) is None
    assert non_monotone_trigger([3, 2, 1, 2.5], 0) == 4 and non_monotone_trigger([2, 1, 3], 1) == 3


def test_losses_that_cannot_be_judged_are_refused():
    optimizer = AveragedSGD(parameters(), lr=1.0)
    optimizer.before_epoch(4)  # a training run that starts again from here
    with pytest.raises(ValueError, match=r"seen 0 .* before epoch 5.*--asgd-at-epoch"):
        optimizer.before_epoch(5)
    AveragedSGD(parameters(), lr=1.0, at_epoch=9).before_epoch(5)
    for loss in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="diverged"):
            optimizer.after_epoch(loss)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        non_monotone_trigger([1.0], -1)
    with pytest.raises(ValueError, match="epoch 2 is NaN"):
        non_monotone_trigger([1.0, math.nan], 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--disable-validation"], "needs one per epoch: remove --disable-validation"),
        (["--lr", "1e30", "--clip-norm", 0], "Nan/Inf: the training run has diverged; lower --lr"),
    ],
    ids=["no validation", "not a number"],
)
def test_runs_that_cannot_continue_name_the_remedy(words, message, stream_data, tmp_path):
    with pytest.raises(CommandFailed, match=rf"ended with 2:(?s:.*){message}"):
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


# -- the schedule of Tensor2Tensor --------------------------------------------------------------

NOAM = "--lr-scheduler t2t_noam --noam-dim 16 --warmup-updates 5 --lr 2.5".split()
# of the Mixtape paper: 2.5 · 1024^−½ · 16000^−½ at the top
EN_DE = {1: 3.8602e-8, 8000: 3.0882e-4, 16000: 6.1764e-4, 64000: 3.0882e-4}


def schedule_of(*words):
    """Build the schedule of `fairseq-train data …`, and its optimizer."""
    cfg = configure("data", "--optimizer", "adam", *words)
    optimizer = optim.build_optimizer(cfg.optimizer, [nn.Parameter()])
    return lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer), optimizer


def rates(*words):
    """Return the learning rates of 12 updates as a trainer sets them, after the first."""
    schedule, optimizer = schedule_of(*words)
    return [optimizer.get_lr(), *(schedule.step_update(done) for done in range(1, 13))]


def test_the_schedule_has_the_papers_learning_rates():
    want = [2.5 * 16**-0.5 * min(t**-0.5, t * 5**-1.5) for t in range(1, 14)]
    assert rates(*NOAM) == pytest.approx(want, rel=1e-12)
    assert max(want) == want[4]
    # inverse_sqrt one update earlier
    words = ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 5, "--lr", want[4]]
    assert rates(*words)[1:] == pytest.approx(want[:12], rel=1e-12)
    assert {t: 2.5 * noam_factor(t, 1024, 16000) for t in EN_DE} == pytest.approx(EN_DE, rel=1e-4)
    words = "--lr-scheduler t2t_noam --noam-dim 1024 --lr 2.5".split()
    assert rates(*words)[0] == pytest.approx(EN_DE[1], rel=1e-4)


def test_a_resumed_run_keeps_its_learning_rates(stream_data, tmp_path):
    words = [*NOAM, "--optimizer", "adam", "--log-format", "json"]
    whole = train_streams(stream_data, tmp_path / "whole", *words, "--max-update", 12)
    train_streams(stream_data, tmp_path / "parts", *words, "--max-update", 7)
    resumed = train_streams(stream_data, tmp_path / "parts", *words, "--max-update", 12)
    assert same(*(parameters_of(last(tmp_path / name)) for name in ("whole", "parts")))
    want = [f"{2.5 * noam_factor(t + 1, 16, 5):.6g}" for t in range(1, 13)]
    for done, rest in ((whole, want), (resumed, want[7:])):  # after each update, of the next
        logged = re.findall(r'train_inner\b.*?"lr": "([\d.e-]+)"', done.output)
        assert logged[: len(rest)] == rest
