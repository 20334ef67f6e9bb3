"""The fairseq side of nt_asgd: options reach the optimizer, and what cannot work is refused."""

import pytest
import torch
from fairseq import optim

from highrank_plugins.optim.averaged_sgd import non_monotone_trigger
from tests.fairseq_cli import CommandFailed
from tests.stream_corpus import train_streams
from tests.tasks.built import configure
from tests.trainings import last


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


def test_five_epochs_and_no_fixed_start_are_the_default():
    inner = build().optimizer
    assert (inner.nonmono, inner.at_epoch) == (5, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonmono", -1], "--nonmono must be at least 0, got -1"),
        (["--asgd-at-epoch", -1], "--asgd-at-epoch must be at least 0, got -1"),
        (["--nonmono-stop"], "--nonmono-stop needs --asgd-at-epoch"),
        (["--fp16"], "use --amp instead of --fp16"),
    ],
    ids=str,
)
def test_invalid_values_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        build(*words)


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
