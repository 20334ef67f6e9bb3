"""The learning rate is Tensor2Tensor's formula, whatever stops the training run on the way."""

import re

import pytest
import torch
from fairseq import optim
from fairseq.optim import lr_scheduler

from highrank_plugins.optim.t2t_noam import noam_factor
from tests.stream_corpus import train_streams
from tests.tasks.built import configure
from tests.trainings import last, parameters, same

NOAM = "--lr-scheduler t2t_noam --noam-dim 16 --warmup-updates 5 --lr 2.5".split()
# of the Mixtape paper: 2.5 · 1024^−½ · 16000^−½ at the top
EN_DE = {1: 3.8602e-8, 8000: 3.0882e-4, 16000: 6.1764e-4, 64000: 3.0882e-4}


def build(*words):
    """Build the schedule of `fairseq-train data …`, and its optimizer."""
    cfg = configure("data", "--optimizer", "adam", *words)
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter()])
    return lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer), optimizer


def rates(schedule, _optimizer, updates):
    """Return the learning rates of the updates 1, 2, …, as a trainer sets them."""
    return [schedule.step_update(done) for done in range(updates)]


def test_the_first_update_is_number_one():
    schedule, optimizer = build(*NOAM)
    want = [2.5 * 16**-0.5 * min(t**-0.5, t * 5**-1.5) for t in range(1, 13)]
    assert optimizer.get_lr() == pytest.approx(want[0], rel=1e-12)
    assert rates(schedule, optimizer, 12) == pytest.approx(want, rel=1e-12)
    assert max(want) == want[4]


def test_the_schedule_has_the_papers_learning_rates():
    assert {t: 2.5 * noam_factor(t, 1024, 16000) for t in EN_DE} == pytest.approx(EN_DE, rel=1e-4)
    words = "--lr-scheduler t2t_noam --noam-dim 1024 --lr 2.5".split()
    assert build(*words)[1].get_lr() == pytest.approx(EN_DE[1], rel=1e-4)


def test_the_schedule_is_inverse_sqrt_one_update_earlier():
    lr = 2.5 * 16**-0.5 * 5**-0.5
    words = ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 5, "--lr", lr]
    ours, stocks = rates(*build(*NOAM), 12), rates(*build(*words), 13)
    assert stocks[0] == 0
    assert ours == pytest.approx(stocks[1:], rel=1e-12)


def test_a_resumed_run_keeps_its_learning_rates(stream_data, tmp_path):
    words = [*NOAM, "--optimizer", "adam", "--log-format", "json"]
    whole = train_streams(stream_data, tmp_path / "whole", *words, "--max-update", 12)
    train_streams(stream_data, tmp_path / "parts", *words, "--max-update", 7)
    resumed = train_streams(stream_data, tmp_path / "parts", *words, "--max-update", 12)
    assert same(parameters(last(tmp_path / "whole")), parameters(last(tmp_path / "parts")))
    want = [f"{2.5 * noam_factor(t + 1, 16, 5):.6g}" for t in range(1, 13)]
    assert logged(whole.output)[:12] == want
    assert logged(resumed.output)[:5] == want[7:]


def logged(output):
    """Return the learning rate after each update, the one of the next."""
    return re.findall(r'train_inner\b.*?"lr": "([\d.e-]+)"', output)
