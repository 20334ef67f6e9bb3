"""Listeners are told what happens, and whoever watches sees signs of life."""

import sys
from difflib import get_close_matches
from inspect import signature
from itertools import groupby

import pytest
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.adam import Adam
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from torch.optim import Optimizer

import highrank_plugins
from highrank_plugins.common.heartbeat import TrainingListener
from highrank_plugins.hooks import trainer, training_loop
from tests.compat.conftest import run_training, translation_options
from tests.hooks.conftest import listen

EVENTS = ("before_epoch", "before_validation", "after_epoch", "before_save")
NAMES = {name for name in vars(TrainingListener) if not name.startswith("_")}


@pytest.fixture
def told(monkeypatch):
    """Record the optimizer's events, in order; "task" stands for the task's."""
    seen = []

    def remember(event):
        return lambda self, *details: seen.append((event, *details))

    listen(monkeypatch, Adam, **{event: remember(event) for event in EVENTS})
    listen(monkeypatch, TranslationTask, before_save=lambda self: seen.append(("task",)))
    return seen


def run(data, folder, *more, **changed):
    options = translation_options(**({"--max-update": 0, "--max-epoch": 2} | changed))
    return run_training(data, folder, *options, *more)


def test_two_epochs_send_all_events_in_order(data, tmp_path, told):
    state = run(data, tmp_path)
    one = ["before_epoch", "before_validation", "after_epoch", "before_save", "task"]
    assert [name for name, *_ in told] == one * 2
    assert [details for name, *details in told if name == "before_epoch"] == [[1], [2]]
    losses = [details[0] for name, *details in told if name == "after_epoch"]
    assert losses[1] == state["extra_state"]["val_loss"]


def test_a_validation_within_an_epoch_does_not_end_the_epoch(data, tmp_path, told, monkeypatch):
    """A score to maximise is sent as its negative."""
    # for a score that is not 0
    monkeypatch.setattr("highrank_plugins.common.options.NO_QUALITY", ())
    changed = {
        "--validate-interval-updates": 1,
        "--max-epoch": 1,
        "--best-checkpoint-metric": "bsz",
    }
    metric = ["--best-checkpoint-metric", "bsz", "--maximize-best-checkpoint-metric"]
    state = run(data, tmp_path, *metric, **changed)
    names = [name for name, *_ in told]
    assert names.count("before_validation") > 1
    assert names.count("after_epoch") == 1
    assert ("after_epoch", -state["extra_state"]["val_loss"]) in told


def test_listeners_are_not_asked_when_no_checkpoint_is_saved(data, tmp_path, told):
    with pytest.raises(FileNotFoundError):  # run_training reads the checkpoint
        run(data, tmp_path, "--no-save", **{"--max-epoch": 1})
    assert "before_save" not in {name for name, *_ in told} and ("task",) not in told


def test_an_optimizer_may_end_the_run(data, tmp_path, monkeypatch):
    end = {"after_epoch": lambda self, loss: setattr(self, "over", True), "over": False}
    listen(monkeypatch, Adam, finished=property(lambda self: self.over), **end)
    state = run(data, tmp_path, **{"--max-epoch": 3})
    assert state["extra_state"]["train_iterator"]["epoch"] == 2  # the one that would be next


class Monitor(TrainingListener):
    """Record the events."""

    def __init__(self):
        self.told = []

    def before_update(self, updates):
        self.told.append(("before", updates))

    def after_update(self, updates, logdir):
        self.told.append(("after", updates, logdir))


def test_a_monitor_is_told_the_number_of_each_update(data, tmp_path, monkeypatch):
    monitor, here = Monitor(), str(tmp_path)
    listen(monkeypatch, TransformerModel, monitor=monitor)
    options = translation_options(**{"--max-update": 2, "--update-freq": 2})
    run_training(data, tmp_path, *options, "--tensorboard-logdir", here)
    expected = [("before", 0), ("after", 1, here), ("before", 1), ("after", 2, here)]
    assert monitor.told == expected


def looks_like_event(name: str) -> bool:
    starts = ("begin_", "before_", "after_", "check_saved_")
    return name.startswith(starts) or bool(get_close_matches(name, NAMES, n=1, cutoff=0.8))


def test_methods_named_like_events_belong_to_listeners_and_take_what_they_are_told():
    for name in ("befor_save", "before_saving", "after_epochs", "begin_update"):
        assert looks_like_event(name) and name not in NAMES
    highrank_plugins.register()
    modules = [module for name, module in sys.modules.items() if "highrank_plugins." in name]
    values = {id(value): value for module in modules for value in vars(module).values()}.values()
    classes = {value for value in values if isinstance(value, type)}
    found = {cls for cls in classes if cls.__module__.startswith("highrank_plugins.")}
    listeners = {cls for cls in found if issubclass(cls, TrainingListener)}
    names = {cls.__name__ for cls in listeners}
    assert {"AveragedSGD", "BPTTLanguageModelingTask", "HeadModel", "HeadMonitor"} <= names
    for cls in found - listeners:
        deaf = set(vars(cls)) & NAMES - {"finished", "monitor"}  # other words elsewhere
        assert not deaf, f"{cls.__name__} listens and is never told"
    for cls in listeners:
        for name, own in vars(cls).items():
            if name in NAMES and callable(own):
                expected = signature(getattr(TrainingListener, name))
                assert [*signature(own).parameters] == [*expected.parameters]
            elif not name.startswith("_") and looks_like_event(name):
                assert name in NAMES, f"{cls.__name__}.{name} is never called"
    for cls in (FairseqTask, BaseFairseqModel, FairseqOptimizer, Optimizer):
        assert not NAMES & set(dir(cls)), "an event would shadow a method"


@pytest.fixture
def beats(monkeypatch):
    """Record the beats of this process: phase and number of updates, None where not told."""
    seen = []

    def beat(phase=None, updates=None):
        seen.append((phase, updates))

    for module in (trainer, training_loop):
        monkeypatch.setattr(module, "beat", beat)
    return seen


def test_each_phase_of_two_epochs_shows_signs_of_life(data, tmp_path, beats):
    state = run(data, tmp_path)
    phases = [phase for phase, _ in groupby(phase for phase, _ in beats if phase is not None)]
    epoch = ["training", "validating", "training", "saving", "training"]
    between = "preparing an epoch"  # also of the epoch that is not trained any more
    assert phases == [*epoch, between, *epoch, between, "ending"]
    updates = [updates for _, updates in beats if updates is not None]
    last = state["last_optimizer_state"]["state"][0]["step"]
    assert updates == list(range(1, int(last) + 1))
    validation = beats[beats.index(("validating", None)) :]
    within = validation[1 : validation.index(("training", None))]
    assert set(within) == {(None, None)}  # batches and sums
