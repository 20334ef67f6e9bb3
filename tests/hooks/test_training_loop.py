"""Where a training run begins and ends, and what it says then."""

import logging
from contextlib import nullcontext
from shlex import split
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils
from fairseq_cli import train as training

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import training_loop
from highrank_plugins.hooks.metrics import METRICS
from tests.compat.conftest import run_training, translation_options
from tests.trainings import last, same


def updates(state: dict) -> int:
    return state["optimizer_history"][-1]["num_updates"]


def test_repeating_a_finished_run_changes_nothing(data, tmp_path):
    run_training(data, tmp_path, *translation_options())
    before = last(tmp_path).read_bytes()
    assert updates(run_training(data, tmp_path, *translation_options())) == 2
    assert last(tmp_path).read_bytes() == before
    further = run_training(data, tmp_path, *translation_options(**{"--max-update": 3}))
    assert updates(further) == 3


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        ("--fp16 --fp16-no-flatten-grads", 1),
        ("--fp16 --fp16-no-flatten-grads --no-save", 0),
        ("--memory-efficient-fp16", 0),
        ("", 0),
    ],
)
def test_a_run_that_does_not_resume_exactly_says_so_once(data, tmp_path, caplog, flags, times):
    words = translation_options(**{"--max-update": 1})
    with pytest.raises(FileNotFoundError) if "--no-save" in flags else nullcontext():
        run_training(data, tmp_path, *words, *split(flags))
    assert caplog.text.count("does not resume exactly") == times


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--lr 0.25 --no-save", ["the run ends within its warm-up: 2 updates, --warmup-updates "
                                 "4000; give about 1", "--lr 0.25, fairseq's", "--no-save: the"]),
        ("--lr 1e-3 --warmup-updates 1", []),
        ("--lr 1e-3 --lr-scheduler polynomial_decay --total-num-update 1",
         ["the learning rate ends at update 1 of 2: nothing is learnt after it; give --total-"]),
        ("--lr 1e-3 --lr-scheduler polynomial_decay --total-num-update 2", []),
    ],
)  # fmt: skip
def test_options_that_lose_a_run_are_warned_of_before_the_first_update(
    data, tmp_path, caplog, monkeypatch, flags, said
):
    def first_update(*_):
        raise UserError("the first update")

    monkeypatch.setattr("highrank_plugins.hooks.trainer.HighrankTrainer.train_step", first_update)
    words = [*translation_options(), "--lr-scheduler", "inverse_sqrt", *split(flags)]
    with pytest.raises(UserError, match="the first update"):
        run_training(data, tmp_path, *words)
    found = [r.message for r in caplog.records if r.name == training_loop.__name__]
    assert [
        start for start, line in zip(said, found, strict=True) if line.startswith(start)
    ] == said


@pytest.mark.parametrize(
    ("options", "updates", "said"),
    [
        ({"max_epoch": 4}, 10, ["epoch 1 is done; about 0:02:30 left"]),
        ({"max_epoch": 4, "max_update": 16}, 10, ["epoch 1 is done; about 0:00:30 left"]),
        ({"max_update": 16}, 10, ["epoch 1 is done; about 0:00:30 left"]),
        ({"max_update": 16}, 0, []),
        ({"max_epoch": 1}, 10, []),
        ({"max_update": 7}, 10, []),
        ({}, 10, []),
    ],
)
def test_the_time_left_is_logged_after_an_epoch(caplog, options, updates, said):
    """Ten updates of four batches each took 50 s."""
    trainer = SimpleNamespace(get_num_updates=lambda: updates, cumulative_training_time=lambda: 50)
    bounds = {"max_epoch": 0, "max_update": 0} | options
    cfg = SimpleNamespace(optimization=SimpleNamespace(**bounds))
    with caplog.at_level(logging.INFO, training_loop.__name__):
        training_loop.log_time_left(cfg, trainer, SimpleNamespace(epoch=1), per_epoch=10)
    assert caplog.messages == said


def test_an_epoch_that_is_resumed_counts_as_whole(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(training_loop, "log_time_left", lambda *given: seen.append(given[-1]))
    for updates in (2, 0):  # the first run ends within an epoch
        words = translation_options(**{"--max-update": updates, "--max-epoch": 2})
        run_training(data, tmp_path, *words)
    _, resumed, whole = seen
    assert resumed == whole > 2


MAXIMISED = "--maximize-best-checkpoint-metric"
BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 5}']


def train(data, folder, metric, *more, **changed):
    words = ["--best-checkpoint-metric", metric, *more]
    return run_training(data, folder, *translation_options(**changed), *words)


@pytest.mark.parametrize(
    ("metric", "more", "problem"),
    [
        ("blue", [], "blue: a validation computes loss, ppl, .* only"),
        ("losss", [], "; did you mean 'loss'"),
        ("bleu", [MAXIMISED], "; add --eval-bleu$"),
        ("accuracy", [MAXIMISED], "accuracy: a validation computes loss"),
        ("bleu", BLEU, "bleu: higher is better; add --maximize-best-checkpoint-metric"),
        ("loss", [MAXIMISED], "would keep the worst: lower loss is better"),
    ],
)
def test_what_cannot_choose_a_checkpoint_is_refused_before_training(
    data, tmp_path, metric, more, problem
):
    with pytest.raises(UserError, match=f"--(maximize-)?best-checkpoint-metric.*{problem}"):
        train(data, tmp_path, metric, *more)
    assert not last(tmp_path).exists()
    assert not (tmp_path / METRICS).exists()


def test_looking_changes_no_number(data, tmp_path):
    plain = train(data, tmp_path / "a", "loss", **{"--dropout": 0.3})
    looked = train(data, tmp_path / "b", "ppl", **{"--dropout": 0.3})
    assert same(plain["model"], looked["model"])


def test_early_stopping_and_the_best_checkpoint_go_by_bleu(data, tmp_path, monkeypatch):
    """Stop after three scores in a row without progress, and keep the highest."""
    scores = iter([3.0, 9.0, 4.0, 5.0, 6.0, 99.0])

    monkeypatch.setattr(training, "validate", lambda *args: [next(scores)])
    often = ["--validate-interval-updates", 1, "--save-interval-updates", 1, "--patience", 3]
    words = [*translation_options(**{"--max-update": 9}), *often, MAXIMISED, *BLEU]
    state = run_training(data, tmp_path, *words, "--best-checkpoint-metric", "bleu")
    assert state["extra_state"]["val_loss"] == 6.0
    best = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_best.pt"))
    assert best["extra_state"]["val_loss"] == 9.0


def test_the_best_score_of_another_metric_is_forgotten(data, tmp_path):
    train(data, tmp_path, "loss")
    state = train(data, tmp_path, "ppl", **{"--max-update": 3})
    assert state["extra_state"]["best"] == state["extra_state"]["val_loss"] > 5
