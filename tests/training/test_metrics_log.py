"""metrics.jsonl of a training run: its numbers, and the short lines made of them."""

import json
import math

import pytest

from highrank_plugins.training.metrics_log import (
    METRICS,
    Progress,
    messages,
    read_training,
    summarise,
)

START = {
    "tag": "start",
    "epoch": 1,
    "num_updates": 0,
    "parameters": 12345,
    "updates_per_epoch": 100,
}


def inner(update, wall):
    more = {"loss": 5.5, "wps": 1234.5, "num_updates": update, "wall": wall}
    return {"tag": "train_inner", "epoch": math.ceil(update / 100)} | more


def epoch(number, updates, wps, wall, memory=1.0):
    more = {"wps": wps, "num_updates": updates, "wall": wall, "peak_memory_gib": memory}
    return {"tag": "train", "epoch": number} | more


def valid(number, updates, loss):
    return {"tag": "valid", "epoch": number, "num_updates": updates, "loss": loss}


RUN = [
    START,
    inner(50, 30),
    valid(1, 100, 7.0),
    epoch(1, 100, 1000.0, 60, 1.5),
    valid(2, 200, 6.5004),
    epoch(2, 200, 3000.0, 120),
    valid(3, 300, 6.6),
    epoch(3, 300, 2000.0, 180),
]


def test_the_summary_has_the_last_numbers_the_median_speed_and_the_best_loss():
    assert summarise(RUN) == {
        "updates": 300,
        "wall_seconds": 180,
        "epochs": 3,
        "words_per_second": 2000,
        "seconds_per_epoch": 60,
        "valid_loss": 6.6,
        "best_valid_loss": 6.5,  # with the digits that fairseq prints
        "parameters": 12345,
        "peak_memory_gib": 1.5,
    }
    assert summarise([*RUN, inner(350, 210)])["updates"] == 350


def test_a_single_epoch_takes_what_the_run_took_until_its_end():
    one = [START, epoch(1, 100, 1000.0, 60), inner(150, 90)]
    assert summarise(one)["seconds_per_epoch"] == 60
    assert summarise(one[:2])["seconds_per_epoch"] == 60
    part = [START, epoch(1, 50, 1000.0, 31)]  # ended by --max-update
    for less in (part, [START, inner(50, 30)], one[1:2]):
        assert "seconds_per_epoch" not in summarise(less)


def write(folder, entries, mode="w"):
    with (folder / METRICS).open(mode) as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_a_training_run_is_read_with_its_command(tmp_path):
    (tmp_path / "command.sh").write_text("highrank launch --slurm job.sh --submit\n")
    write(tmp_path, RUN)
    found = read_training(tmp_path)
    assert found.command == "highrank launch --slurm job.sh --submit"
    assert found.summary["updates"] == 300


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([START], "metrics.jsonl: no numbers of a training run; give"),
        ([START, {"tag": "train"}], "line of numbers is damaged: KeyError"),
        ([[1]], "line of numbers is damaged: TypeError"),
        ([START, inner(3, "x")], "line of numbers is damaged: ValueError"),
        (
            [START, valid(1, 100, None), epoch(1, 100, 9000.0, 60)],
            "valid_loss is nan, best_valid_loss is nan: the training run has diverged",
        ),
    ],
)
def test_numbers_of_no_training_run_are_refused(tmp_path, entries, message):
    (tmp_path / "command.sh").write_text("fairseq-train\n")
    write(tmp_path, entries)
    with pytest.raises(ValueError, match=message):
        read_training(tmp_path)


def said(folder, entries, max_update=math.inf, max_epoch=math.inf):
    progress = Progress(folder / METRICS, max_update, max_epoch)
    write(folder, entries)
    return list(progress.new_lines())


@pytest.mark.parametrize("bounds", [(200, math.inf), (math.inf, 2)])
def test_progress_and_time_left_follow_updates_or_epochs(tmp_path, bounds):
    (line,) = said(tmp_path, [START, inner(50, 30)], *bounds)
    assert line == "epoch 1, update 50: loss 5.5, 1,234 words/s, 25% done, 0:01:30 left"


def test_other_numbers_are_shown_where_there_are_some(tmp_path):
    (unbounded,) = said(tmp_path, [START, inner(50, 30) | {"ppl": 45.25}])
    assert unbounded == "epoch 1, update 50: loss 5.5, perplexity 45.25, 1,234 words/s"
    (tmp_path / METRICS).unlink()
    assert said(tmp_path, [START, valid(1, 100, 7.0)]) == [
        "epoch 1, update 100: validation loss 7.0"
    ]


def test_each_line_is_shown_once_when_it_is_complete(tmp_path):
    write(tmp_path, [START, inner(50, 30)])
    progress = Progress(tmp_path / METRICS, 200, math.inf)  # of a run that is resumed
    assert list(progress.new_lines()) == []
    text = json.dumps(valid(1, 100, 7.0)) + "\n"
    for part, count in ((text[:9], 0), (text[9:], 1), ("", 0)):
        with (tmp_path / METRICS).open("a") as file:
            file.write(part)
        assert len(list(progress.new_lines())) == count
    new = tmp_path / "new"
    new.write_text(json.dumps(START) + "\n")
    new.rename(tmp_path / METRICS)  # the hook drops the lines of a lost part
    assert list(progress.new_lines()) == []
    write(tmp_path, [inner(60, 33)], "a")
    assert len(list(progress.new_lines())) == 1


def shown(lines):
    return [line for line in messages(lines) if line is not None]


MODEL = ["2026-01-02 03:04:05 | INFO | fairseq_cli.train | Model(\n", "  (layer): Linear()\n"]


@pytest.mark.parametrize(
    "end",
    [
        "fairseq-train: error: a.bin is damaged\n",
        "highrank: failed with exit code 134: rank 1 has shown no sign of life\n",
        "[rank1]: Traceback (most recent call last):\n",
    ],
)
def test_the_last_line_of_a_command_that_failed_is_shown(end):
    assert shown([*MODEL, end]) == [end.rstrip("\n")]


def test_warnings_and_errors_are_shown_whole():
    warning = ["2026-01-02 03:04:05 | WARNING | fairseq | sentences\n", "  too long\n"]
    crash = ["Traceback (most recent call last):\n", "  File …\n", "ValueError: bad\n"]
    early = ["INFO:fairseq.tasks:hello\n", "fairseq-train: error: no data\n"]
    found = shown([early[1], *early[:1], *MODEL, *warning, MODEL[0], *crash])
    assert found == [text.rstrip("\n") for text in [early[1], *warning, *crash]]
