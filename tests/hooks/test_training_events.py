"""hooks/training_events.py"""

import pytest
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.optim.adam import Adam
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq_cli import train as training

import highrank_plugins.hooks.training_events  # noqa: F401  (applies it)
from tests.compat.conftest import run_training, translation_options

EVENTS = ("begin_epoch", "before_validation", "after_epoch", "before_save")


@pytest.fixture
def told(monkeypatch):
    """What the optimizer was told, in order; "task" where the task was."""
    seen = []

    def listener(event):
        return lambda self, *details: seen.append((event, *details))

    for event in EVENTS:
        monkeypatch.setattr(Adam, event, listener(event), raising=False)
    monkeypatch.setattr(
        TranslationTask, "before_save", lambda self: seen.append(("task",)), raising=False
    )
    return seen


def run(data, folder, **changed):
    options = translation_options(**({"--max-update": 0, "--max-epoch": 2} | changed))
    return run_training(data, folder, *options)


def test_what_happens_in_two_epochs(data, tmp_path, told):
    state = run(data, tmp_path)
    one = ["begin_epoch", "before_validation", "after_epoch", "before_save", "task"]
    assert [name for name, *_ in told] == one * 2
    assert [details for name, *details in told if name == "begin_epoch"] == [[1], [2]]
    losses = [details[0] for name, *details in told if name == "after_epoch"]
    assert losses[1] == state["extra_state"]["val_loss"]


def test_a_validation_within_an_epoch_is_not_that_of_the_epoch(data, tmp_path, told):
    run(data, tmp_path, **{"--validate-interval-updates": 1, "--max-epoch": 1})
    names = [name for name, *_ in told]
    assert names.count("before_validation") > 1
    assert names.count("after_epoch") == 1


def test_a_score_to_be_maximised_is_a_loss_with_its_sign_changed(data, tmp_path, told):
    changed = {"--best-checkpoint-metric": "ppl", "--max-epoch": 1}
    options = [*translation_options(**({"--max-update": 0} | changed))]
    state = run_training(data, tmp_path, *options, "--maximize-best-checkpoint-metric")
    assert ("after_epoch", -state["extra_state"]["val_loss"]) in told


def test_nothing_is_handed_in_where_nothing_is_saved(data, tmp_path, told):
    options = translation_options(**{"--max-update": 0, "--max-epoch": 1})
    with pytest.raises(FileNotFoundError):  # run_training reads the checkpoint
        run_training(data, tmp_path, *options, "--no-save")
    assert "before_save" not in {name for name, *_ in told} and ("task",) not in told


def test_an_optimizer_may_end_the_training(data, tmp_path, monkeypatch):
    def after_epoch(optimizer, loss):
        optimizer.finished = True

    monkeypatch.setattr(Adam, "after_epoch", after_epoch, raising=False)
    state = run(data, tmp_path, **{"--max-epoch": 3})
    assert state["extra_state"]["train_iterator"]["epoch"] == 2  # the one that would be next


class Monitor:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def before_update(self, updates):
        self.told.append(("before", updates))

    def after_update(self, updates, logdir):
        self.told.append(("after", updates, logdir))


@pytest.fixture
def monitor(monkeypatch):
    """What the model was told."""
    listening = Monitor()
    monkeypatch.setattr(TransformerModel, "monitor", listening, raising=False)
    return listening


def test_a_model_learns_which_update_it_is(data, tmp_path, monitor):
    options = translation_options(**{"--max-update": 2, "--update-freq": 2})
    run_training(data, tmp_path, *options, "--tensorboard-logdir", str(tmp_path))
    here = str(tmp_path)
    expected = [("before", 0), ("after", 1, here), ("before", 1), ("after", 2, here)]
    assert monitor.told == expected


def test_stock_tells_nothing(data, tmp_path, told, monitor, stock):
    stock(Trainer, "begin_epoch")
    stock(Trainer, "begin_valid_epoch")
    stock(training, "validate")
    stock(checkpoint_utils, "save_checkpoint")
    stock(Trainer, "train_step")
    run(data, tmp_path)
    assert told == [] and monitor.told == []
