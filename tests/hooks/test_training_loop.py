"""Where a training run begins and ends, whom it tells, and how others see that it lives.

Its numbers reach metrics.jsonl.
"""

import json
import logging
import math
from argparse import Namespace
from itertools import groupby
from shlex import split
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import progress_bar as bars
from fairseq.logging.meters import AverageMeter, StopwatchMeter
from fairseq.optim.adam import Adam
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import metrics, trainer, training_loop
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
    # its time was used up before this start
    assert updates(train(data, tmp_path, max_update=9, stop_time_hours=1e-6)) == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--lr 0.25 --no-save", ["the run ends within its warm-up: 2 updates, --warmup-updates "
                                 "4000; give about 1", "--lr 0.25, fairseq's", "--no-save: the"]),
        ("--lr 1e-3 --warmup-updates 1", []),
        ("--lr 1e-3 --lr-scheduler polynomial_decay --total-num-update 1",
         ["the learning rate ends at update 1 of 2: nothing is learnt after it; give --total-"]),
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
        ({"max_epoch": 4, "max_update": 16}, 10, "0:00:30"),
        ({"max_update": 16}, 10, "0:00:30"),
        ({"max_update": 16}, 0, None),
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
        ("bleu", [MAXIMISED], "; add --eval-bleu$"),
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
    assert phases == [*epoch, "preparing an epoch", *epoch, "ending"]
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


def test_an_optimizer_may_end_the_run_and_the_last_epoch_is_saved(data, tmp_path, monkeypatch):
    """Whatever --save-interval says; the best epoch may be the last."""
    rarely = {"max_update": 0, "max_epoch": 3, "save_interval": 2}
    state = train(data, tmp_path / "a", **rarely)
    assert state["extra_state"]["train_iterator"]["epoch"] == 4
    assert state["extra_state"]["val_loss"] == state["extra_state"]["best"]
    end = {"after_epoch": lambda self, loss: setattr(self, "over", True), "over": False}
    listen(monkeypatch, Adam, finished=property(lambda self: self.over), **end)
    state = train(data, tmp_path / "b", **rarely)
    assert state["extra_state"]["train_iterator"]["epoch"] == 2  # the one that would be next


def lines(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def record(data, folder, *words, **changed):
    """Train, and log each update."""
    options = {"log_interval": 1, "log_format": "none", "max_tokens": 400}
    return train(data, folder, *words, **options | changed)


def test_numbers_are_recorded_with_any_log_format(data, tmp_path):
    layer = {"arch": "transformer_mos_tiny", "criterion": "highrank_cross_entropy"}
    for log_format in "none", "tqdm":
        folder = tmp_path / log_format
        record(data, folder, head_loss="chunked", log_format=log_format, **layer)
        kinds = [(line["tag"], line["num_updates"]) for line in lines(folder)]
        assert ("train_inner", 1) in kinds and ("valid", 2) in kinds
        sizes, first, *_ = lines(folder)
        assert sizes["tag"] == "start" and sizes["parameters"] > 1000 and sizes["num_updates"] == 0
        assert sizes["updates_per_epoch"] >= 2
        assert first["epoch"] == 1 and isinstance(first["loss"], float) and first["lr"] == 0.01
        (epoch,) = (line for line in lines(folder) if line["tag"] == "train")
        assert 0.01 < epoch["peak_memory_gib"] < 100
        assert epoch["implementations"]["mos"] == "chunked"  # other tests may have heads, too


def test_a_resumed_run_has_each_line_once(data, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    record(data, whole, max_update=4)
    record(data, resumed)
    path = resumed / METRICS
    note = "# a line of the user\n"
    own = path.read_text() + note + '{"tag": "train_inner", "num_updates": 3}\n{"tag": "tr'
    path.write_text(own)
    record(data, resumed, max_update=4)
    one, other = ([(line["num_updates"], line["loss"]) for line in lines(run)
                   if line["tag"] == "train_inner"] for run in (whole, resumed))  # fmt: skip
    assert one == other and [update for update, _ in one] == [1, 2, 3, 4]
    assert [kept.read_text() for kept in resumed.glob("metrics.before-*.jsonl")] == [own]
    names = [*next(line for line in lines(whole) if line["tag"] == "train_inner")]
    assert names.index("wall") < names.index("train_wall")  # which is of one update


def test_the_time_of_a_run_adds_up_over_its_sittings(data, tmp_path):
    """An epoch has several updates: the run is resumed within an epoch, and at the end of one."""
    for bound, before in ((1, 0), (2, 1000), (3, 2000)):
        state = record(data, tmp_path, max_tokens=60, max_update=bound)
        wall = lines(tmp_path)[-1]["wall"]
        assert before <= wall < before + 900
        assert before <= state["extra_state"]["previous_training_time"] < before + 900
        # several processes store a tensor
        time = torch.tensor(1000.0) + state["extra_state"]["previous_training_time"]
        state["extra_state"]["previous_training_time"] = time
        state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
        torch.save(state, last(tmp_path))
    state = record(data, tmp_path / "other", finetune_from_model=last(tmp_path))
    assert lines(tmp_path / "other")[-1]["wall"] < 900
    assert state["extra_state"]["previous_training_time"] < 900


def test_a_file_of_an_earlier_run_or_of_the_user_is_kept(data, tmp_path):
    (tmp_path / METRICS).write_text('{"tag": "train_inner", "num_updates": 1, "old": 1}\n')
    record(data, tmp_path)
    assert not any("old" in line for line in lines(tmp_path))
    (earlier,) = tmp_path.glob("metrics.before-*.jsonl")
    assert json.loads(earlier.read_text())["old"] == 1
    earlier.unlink()
    record(data, tmp_path / "other", max_update=1)
    record(data, tmp_path, restore_file=last(tmp_path / "other"), max_update=3)
    kept, (earlier,) = lines(tmp_path), tmp_path.glob("metrics.before-*.jsonl")
    assert [line["num_updates"] for line in kept if line["tag"] == "train_inner"] == [2, 3]
    assert '"num_updates": 1,' in earlier.read_text().replace("}", ",")
    earlier.unlink()
    content = '{"tag": "train"}\n{"step": 1, "loss": 2}\n'
    (tmp_path / METRICS).write_text(content)
    record(data, tmp_path, max_update=4)
    (earlier,) = tmp_path.glob("metrics.before-*.jsonl")
    assert earlier.read_text() == content and lines(tmp_path)[0]["tag"] == "start"


def test_statistics_become_numbers_of_a_line_which_may_be_lost(tmp_path, monkeypatch, caplog):
    meter, watch = AverageMeter(), StopwatchMeter()
    meter.update(3.0)
    watch.sum = 2.5
    numbers = {"meter": meter, "watch": watch, "tensor": torch.tensor(1.5), "whole": 7,
               "nan": math.nan, "inf": math.inf}  # fmt: skip
    monkeypatch.setattr(metrics, "_written", [tmp_path / METRICS])
    bar = bars.progress_bar([], "none", 100, None, 3)  # the epoch is given by position
    bar.log(numbers | {"text": "0.25"}, tag="train_inner", step=1)
    known = {"meter": 3.0, "watch": 2.5, "tensor": 1.5, "whole": 7, "nan": None, "inf": None}
    assert lines(tmp_path) == [{"tag": "train_inner", "epoch": 3} | known | {"num_updates": 1}]
    bar.path = tmp_path / "missing" / METRICS  # as if the disk was full
    bar.log({"loss": 1.0}, tag="train_inner", step=2)
    assert "this line was not written" in caplog.text


@pytest.mark.parametrize(
    ("flags", "times"), [("--fp16 --fp16-no-flatten-grads", 1), ("--memory-efficient-fp16", 0)]
)
def test_a_run_that_does_not_resume_exactly_says_so_once(data, tmp_path, caplog, flags, times):
    train(data, tmp_path, *split(flags), max_update=1)
    assert caplog.text.count("does not resume exactly") == times
