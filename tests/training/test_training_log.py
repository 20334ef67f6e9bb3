"""The log of fairseq-train: its numbers."""

import json
import math

import pytest

from highrank_plugins.training.training_log import read_training, summarise


def line(kind: str, level: str = "INFO", **stats) -> str:
    return f"2026-01-02 03:04:05 | {level} | {kind} | {json.dumps(stats)}\n"


def inner(update: int, epoch: float, wall: int) -> str:
    numbers = {"loss": "5.5", "wps": "1234.5", "num_updates": str(update), "wall": str(wall)}
    return line("train_inner", epoch=math.ceil(epoch), update=epoch, **numbers)


def epoch(number: int, updates: int, wps: float, wall: int) -> str:
    stats = {"train_wps": str(wps), "train_num_updates": str(updates), "train_wall": str(wall)}
    return line("train", epoch=number, **stats)


def valid(number: int, updates: int, loss: float) -> str:
    stats = {"valid_loss": str(loss), "valid_num_updates": str(updates)}
    return line("valid", epoch=number, **stats)


LOG = [
    "2026-01-02 03:04:05 | INFO | fairseq_cli.train | Model(\n",
    "  (layer): Linear()\n",
    "a | INFO | fairseq_cli.train | num. shared model params: 12,345 (num. trained: 12,345)\n",
    inner(50, 0.5, 30),
    valid(1, 100, 7.0),
    epoch(1, 100, 1000.0, 60),
    valid(2, 200, 6.5),
    epoch(2, 200, 3000.0, 120),
    valid(3, 300, 6.6),
    epoch(3, 300, 2000.0, 180),
]


def test_the_summary_has_the_last_numbers_the_median_speed_and_the_best_loss():
    assert summarise(LOG) == {
        "updates": 300,
        "wall_seconds": 180,
        "epochs": 3,
        "words_per_second": 2000,
        "seconds_per_epoch": 60,
        "valid_loss": 6.6,
        "best_valid_loss": 6.5,
        "parameters": 12345,
    }


def test_an_epoch_done_twice_after_a_resume_counts_once():
    resumed = [*LOG, valid(3, 300, 6.4), epoch(3, 300, 9000.0, 200)]
    summary = summarise(resumed)
    assert summary["words_per_second"] == 3000
    assert summary["valid_loss"] == 6.4
    assert summary["wall_seconds"] == 200
    assert summary["seconds_per_epoch"] == 70  # 60 and 80


def test_a_single_epoch_takes_what_the_run_took_until_its_end():
    one = [inner(50, 0.5, 30), epoch(1, 100, 1000.0, 60), inner(150, 1.5, 90)]
    assert summarise(one)["seconds_per_epoch"] == 60
    assert summarise(one[:2])["seconds_per_epoch"] == 60
    assert "seconds_per_epoch" not in summarise(one[:1])
    part = [inner(50, 0.25, 30), epoch(1, 50, 1000.0, 31)]  # ended by --max-update
    assert "seconds_per_epoch" not in summarise(part)
    assert "seconds_per_epoch" not in summarise(one[1:2])  # it may have been a part


def test_updates_after_the_last_epoch_count():
    assert summarise([*LOG, inner(350, 3.5, 210)])["updates"] == 350


def test_overlapping_logs_count_the_furthest_update():
    assert summarise([*LOG, *LOG[:4]])["updates"] == 300


def test_a_run_elsewhere_is_read_from_the_log_of_its_first_process(tmp_path):
    (tmp_path / "command.sh").write_text("highrank launch --slurm job.sh --submit\n")
    (tmp_path / "train.log").write_text("sbatch job.sh: job 1\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.log").write_text("".join(LOG))
    found = read_training(tmp_path)
    assert found.command == "highrank launch --slurm job.sh --submit"
    assert found.summary["updates"] == 300


def test_a_log_without_numbers_has_an_empty_summary():
    assert summarise(["usage: fairseq-train\n"]) == {"epochs": 0}


DIVERGED = [valid(1, 100, math.nan), epoch(1, 100, 9000.0, 60)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["usage: fairseq-train\n"], "train.log: no numbers of a training run; give"),
        (['a | INFO | valid | {"epoch": 1}\n'], "line of numbers is damaged: KeyError"),
        (DIVERGED, "valid_loss is nan, best_valid_loss is nan: the training run has diverged"),
    ],
)
def test_a_log_of_no_training_run_is_refused(tmp_path, lines, message):
    (tmp_path / "command.sh").write_text("fairseq-train\n")
    (tmp_path / "train.log").write_text("".join(lines))
    with pytest.raises(ValueError, match=message):
        read_training(tmp_path)
