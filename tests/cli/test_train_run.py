"""`highrank train run`: the exit code, the log and the progress of a training run."""

import json

import pytest
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.training import disk_space

ENTRY = {"tag": "train_inner", "epoch": 1, "num_updates": 5, "loss": 3, "wps": 9, "wall": 60}


@pytest.fixture
def training(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_space, "check_space", lambda *given: None)
    (tmp_path / "config.yaml").write_text("data: {vocab_size: 5}\ntrain: {max_update: 10}\n")

    def training(script: str):
        (tmp_path / "command.sh").write_text(script)
        where = ["--config", tmp_path / "config.yaml", "--save-dir", tmp_path]
        words = ["train", "run", tmp_path / "command.sh", *where, "--block", "train"]
        words = [*map(str, words), "--data", str(tmp_path)]
        return CliRunner().invoke(app, words)

    return training


def test_the_log_is_complete_and_progress_is_short(training, tmp_path):
    numbers = f"echo '{json.dumps(ENTRY)}' >> {tmp_path}/metrics.jsonl"
    line = "2026-01-02 03:04:05 | INFO | train_inner | {}"
    result = training(f"{numbers}; echo '{line}'; printf 'caf\\xe9\\n' >&2")
    assert result.exit_code == 0
    assert result.stdout.startswith("epoch 1, update 5: loss 3, 9 words/s, 50% done, 0:01:00 left")
    assert line not in result.stdout
    assert (tmp_path / "train.log").read_bytes().splitlines() == [line.encode(), b"caf\xe9"]
    training("echo again")
    assert (tmp_path / "train.log").read_bytes().splitlines()[-1] == b"again"


@pytest.mark.parametrize(("end", "code"), [("exit 75", 75), ("kill -KILL $$", 137)])
def test_the_exit_code_is_that_of_the_run(training, end, code):
    assert training(end).exit_code == code
