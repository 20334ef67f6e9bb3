"""Test hooks/training_events.py."""

import sys
from difflib import get_close_matches
from inspect import signature

import pytest
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.adam import Adam
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq_cli import train as training
from torch.optim import Optimizer

import highrank_plugins
from highrank_plugins.common.training_listener import TrainingListener
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


def run(data, folder, **changed):
    options = translation_options(**({"--max-update": 0, "--max-epoch": 2} | changed))
    return run_training(data, folder, *options)


def test_two_epochs_send_all_events_in_order(data, tmp_path, told):
    state = run(data, tmp_path)
    one = ["before_epoch", "before_validation", "after_epoch", "before_save", "task"]
    assert [name for name, *_ in told] == one * 2
    assert [details for name, *details in told if name == "before_epoch"] == [[1], [2]]
    losses = [details[0] for name, *details in told if name == "after_epoch"]
    assert losses[1] == state["extra_state"]["val_loss"]


def test_a_validation_within_an_epoch_does_not_end_the_epoch(data, tmp_path, told):
    run(data, tmp_path, **{"--validate-interval-updates": 1, "--max-epoch": 1})
    names = [name for name, *_ in told]
    assert names.count("before_validation") > 1
    assert names.count("after_epoch") == 1


def test_a_score_to_maximise_is_sent_as_its_negative(data, tmp_path, told, monkeypatch):
    monkeypatch.setattr(
        "highrank_plugins.common.options.NO_QUALITY", ()
    )  # for a score that is not 0
    changed = {"--best-checkpoint-metric": "bsz", "--max-epoch": 1}
    options = [*translation_options(**({"--max-update": 0} | changed))]
    state = run_training(data, tmp_path, *options, "--maximize-best-checkpoint-metric")
    assert ("after_epoch", -state["extra_state"]["val_loss"]) in told


def test_listeners_are_not_asked_when_no_checkpoint_is_saved(data, tmp_path, told):
    options = translation_options(**{"--max-update": 0, "--max-epoch": 1})
    with pytest.raises(FileNotFoundError):  # run_training reads the checkpoint
        run_training(data, tmp_path, *options, "--no-save")
    assert "before_save" not in {name for name, *_ in told} and ("task",) not in told


def test_an_optimizer_may_end_the_run(data, tmp_path, monkeypatch):
    listen(monkeypatch, Adam, finished=property(lambda self: self.over))
    listen(
        monkeypatch, Adam, after_epoch=lambda self, loss: setattr(self, "over", True), over=False
    )
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


@pytest.fixture
def monitor(monkeypatch):
    """Record the model's events."""
    listening = Monitor()
    listen(monkeypatch, TransformerModel, monitor=listening)
    return listening


def test_a_model_is_told_the_number_of_each_update(data, tmp_path, monitor):
    options = translation_options(**{"--max-update": 2, "--update-freq": 2})
    run_training(data, tmp_path, *options, "--tensorboard-logdir", str(tmp_path))
    here = str(tmp_path)
    expected = [("before", 0), ("after", 1, here), ("before", 1), ("after", 2, here)]
    assert monitor.told == expected


def test_stock_sends_no_events(data, tmp_path, told, monitor, stock):
    stock(Trainer, "begin_epoch")
    stock(Trainer, "begin_valid_epoch")
    stock(training, "validate")
    stock(Trainer, "consolidate_optimizer")
    stock(Trainer, "train_step")
    run(data, tmp_path)
    assert told == [] and monitor.told == []


def classes(package: str) -> list[type]:
    """Return every class of the package that is imported."""
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    values = [value for module in modules for value in vars(module).values()]
    return [cls for cls in values if isinstance(cls, type) and cls.__module__.startswith(package)]


def events_of(cls: type) -> set[str]:
    """Return names in the body of a class that are events, or look like one."""
    own = {name for name in vars(cls) if not name.startswith("_")}
    return {
        name
        for name in own
        if name.startswith(("begin_", "before_", "after_", "check_saved_"))
        or get_close_matches(name, NAMES, n=1, cutoff=0.8)
    }


def test_methods_named_like_events_belong_to_listeners():
    highrank_plugins.register()
    listeners = set()
    for cls in classes("highrank_plugins."):
        if issubclass(cls, TrainingListener):
            listeners.add(cls.__name__)
            assert events_of(cls) <= NAMES, f"{cls.__name__} overrides what is never called"
        else:
            deaf = set(vars(cls)) & NAMES - {"finished", "monitor"}  # other words elsewhere
            assert not deaf, f"{cls.__name__} listens and is never told"
    assert {"AveragedSGD", "BPTTLanguageModelingTask", "HeadModel", "HeadMonitor"} <= listeners


@pytest.mark.parametrize("name", ["befor_save", "before_saving", "after_epochs", "begin_update"])
def test_a_misspelt_event_is_found(name):
    misspelt = type("Misspelt", (TrainingListener,), {name: lambda self: None})
    assert not events_of(misspelt) <= NAMES


@pytest.mark.parametrize("cls", [FairseqTask, BaseFairseqModel, FairseqOptimizer, Optimizer])
def test_event_names_do_not_shadow_methods_of_listeners(cls):
    assert not NAMES & set(dir(cls))


def test_listeners_accept_all_events():
    highrank_plugins.register()
    for cls in classes("highrank_plugins."):
        for name in NAMES & set(vars(cls)) if issubclass(cls, TrainingListener) else ():
            expected, own = getattr(TrainingListener, name), getattr(cls, name)
            if callable(expected):
                assert [*signature(own).parameters] == [*signature(expected).parameters]
