"""Where a training run begins and ends, whom it tells, and how others see that it lives."""

import logging
from argparse import Namespace
from itertools import groupby
from shlex import split
from types import SimpleNamespace

import pytest
from fairseq.optim.adam import Adam
from fairseq.tasks.translation import TranslationTask

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import trainer, training_loop
from highrank_plugins.hooks.metrics import METRICS
from tests.compat.conftest import train, updates
from tests.hooks.conftest import listen
from tests.trainings import last, same


def test_repeating_a_finished_run_changes_nothing(data, tmp_path):
    train(data, tmp_path)
    before = last(tmp_path).read_bytes()
    assert updates(train(data, tmp_path)) == 2
    assert last(tmp_path).read_bytes() == before
    state = train(data, tmp_path, max_update=3, best_checkpoint_metric="ppl")
    # the best score of another metric is forgotten
    assert state["extra_state"]["best"] == state["extra_state"]["val_loss"] > 5
    assert updates(state) == 3


@pytest.mark.parametrize(
    ("flags", "times"), [("--fp16 --fp16-no-flatten-grads", 1), ("--memory-efficient-fp16", 0)]
)
def test_a_run_that_does_not_resume_exactly_says_so_once(data, tmp_path, caplog, flags, times):
    train(data, tmp_path, *split(flags), max_update=1)
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

    monkeypatch.setattr(trainer.HighrankTrainer, "train_step", first_update)
    with pytest.raises(UserError, match="the first update"):
        train(data, tmp_path, "--lr-scheduler", "inverse_sqrt", *split(flags))
    found = [r.message for r in caplog.records if r.name == training_loop.__name__]
    assert all(line.startswith(start) for start, line in zip(said, found, strict=True))


KEEP = {"max_update": 6, "save_interval_updates": 2, "keep_interval_updates": 2}


def test_the_disk_must_hold_the_checkpoints_to_come(data, tmp_path, monkeypatch):
    needed, free = [], Namespace(free=1000)
    monkeypatch.setattr(training_loop, "require_space", lambda _, size: needed.append(size))
    train(data, tmp_path, **KEEP)
    train(data, tmp_path, **KEEP | {"max_update": 7})
    sizes = [path.stat().st_size for path in tmp_path.glob("*.pt")]
    assert len(sizes) == 4  # two of updates, the best, the last
    assert needed[1] < needed[0] / 3 and needed[0] % 5 == 0
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: free)
    with pytest.raises(UserError, match=r"kB are needed on the disk of .*, 1\.0 kB are free"):
        train(data, tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "updates", "left"),
    [
        ({"max_epoch": 4}, 10, "0:02:30"),
        ({"max_epoch": 4, "max_update": 16}, 10, "0:00:30"),
        ({"max_update": 16}, 10, "0:00:30"),
        ({"max_update": 16}, 0, None),
        ({"max_epoch": 1, "max_update": 99}, 10, None),
        ({}, 10, None),
    ],
)
def test_the_time_left_is_logged_after_an_epoch(caplog, options, updates, left):
    """Ten updates of four batches each took 50 s."""
    trainer = SimpleNamespace(get_num_updates=lambda: updates, cumulative_training_time=lambda: 50)
    bounds = {"max_epoch": 0, "max_update": 0} | options
    cfg = SimpleNamespace(optimization=SimpleNamespace(**bounds))
    with caplog.at_level(logging.INFO, training_loop.__name__):
        training_loop.log_time_left(cfg, trainer, SimpleNamespace(epoch=1), per_epoch=10)
    assert caplog.messages == ([f"epoch 1 is done; about {left} left"] if left else [])


MAXIMISED = "--maximize-best-checkpoint-metric"
BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 5}']


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
        train(data, tmp_path, *more, best_checkpoint_metric=metric)
    assert not last(tmp_path).exists()
    assert not (tmp_path / METRICS).exists()


def test_looking_changes_no_number(data, tmp_path):
    plain, looked = (
        train(data, tmp_path / name, dropout=0.3, best_checkpoint_metric=name)
        for name in ("loss", "ppl")
    )
    assert same(plain["model"], looked["model"])


EVENTS = ("before_epoch", "before_validation", "after_epoch", "before_save")


@pytest.fixture
def told(monkeypatch):
    """Record the optimizer's events, in order; "task" stands for the task's."""
    seen = []

    def remember(event):
        return lambda self, *details: seen.append((event, *details))

    listen(monkeypatch, Adam, **{event: remember(event) for event in EVENTS})
    listen(monkeypatch, TranslationTask, before_save=lambda self: seen.append(("task",)))
    return seen


@pytest.fixture
def beats(monkeypatch):
    """Record the beats of this process: phase and number of updates, None where not told."""
    seen = []
    for module in (trainer, training_loop):
        monkeypatch.setattr(
            module, "beat", lambda phase=None, updates=None: seen.append((phase, updates))
        )
    return seen


def test_two_epochs_send_all_events_in_order_and_show_signs_of_life(data, tmp_path, told, beats):
    state = train(data, tmp_path, max_update=0, max_epoch=2)
    one = ["before_epoch", "before_validation", "after_epoch", "before_save", "task"]
    assert [name for name, *_ in told] == one * 2
    assert [details for name, *details in told if name == "before_epoch"] == [[1], [2]]
    losses = [details[0] for name, *details in told if name == "after_epoch"]
    assert losses[1] == state["extra_state"]["val_loss"]

    phases = [phase for phase, _ in groupby(phase for phase, _ in beats if phase is not None)]
    epoch = ["training", "validating", "training", "saving", "training"]
    between = "preparing an epoch"  # also of the epoch that is not trained any more
    assert phases == [*epoch, between, *epoch, between, "ending"]
    updates = [updates for _, updates in beats if updates is not None]
    assert updates == [*range(1, int(state["last_optimizer_state"]["state"][0]["step"]) + 1)]
    validation = beats[beats.index(("validating", None)) :]
    within = validation[1 : validation.index(("training", None))]
    assert set(within) == {(None, None)}  # batches and sums


def test_a_validation_within_an_epoch_does_not_end_the_epoch(data, tmp_path, told, monkeypatch):
    """A score to maximise is sent as its negative."""
    # for a score that is not 0
    monkeypatch.setattr("highrank_plugins.common.options.NO_QUALITY", ())
    often = {"max_update": 0, "max_epoch": 1, "validate_interval_updates": 1}
    state = train(data, tmp_path, MAXIMISED, best_checkpoint_metric="bsz", **often)
    names = [name for name, *_ in told]
    assert names.count("before_validation") > 1
    assert names.count("after_epoch") == 1
    assert ("after_epoch", -state["extra_state"]["val_loss"]) in told


def test_an_optimizer_may_end_the_run(data, tmp_path, monkeypatch):
    end = {"after_epoch": lambda self, loss: setattr(self, "over", True), "over": False}
    listen(monkeypatch, Adam, finished=property(lambda self: self.over), **end)
    state = train(data, tmp_path, max_update=0, max_epoch=3)
    assert state["extra_state"]["train_iterator"]["epoch"] == 2  # the one that would be next
