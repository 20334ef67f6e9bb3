"""`highrank doctor --faults` prints each fault, sets the exit code and leaves nothing."""

import json

import pytest
import typer

from highrank_plugins.cli.doctor import doctor
from highrank_plugins.reliability import faults
from highrank_plugins.reliability.file_system import flush_and_link
from highrank_plugins.reliability.finding import Finding
from highrank_plugins.reliability.trainings import stall_rank


def fail(folder):
    (folder / "left").write_text("behind")
    return Finding("power failure", False, "it is dark", "Buy a battery")


def raise_error(folder):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "tried, code, words",
    [
        ([flush_and_link], 0, "survived  flushes and links"),
        ([fail, flush_and_link], 1, "FAILED    power failure               it is dark. Buy a batt"),
        ([raise_error], 1, "FAILED    raise error                 [Errno 28] No space left"),
    ],
)
def test_each_fault_prints_a_line_and_sets_the_exit_code(
    tmp_path, monkeypatch, capsys, tried, code, words
):
    monkeypatch.setattr(faults, "FAULTS", tried)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path, faults=True)
    assert ended.value.exit_code == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(words)
    assert len(lines) == len(tried)
    assert not list(tmp_path.iterdir())
    with pytest.raises(typer.Exit):
        doctor(tmp_path, faults=True, as_json=True)
    assert len(json.loads(capsys.readouterr().out)["faults"]) == len(tried)


@pytest.mark.parametrize(
    "name, with_faults, words",
    [
        ("none", True, "no such folder; name a folder on the disk to test"),
        (".", False, "no effect without --faults"),
    ],
)
def test_wrong_folders_are_refused(tmp_path, capsys, monkeypatch, name, with_faults, words):
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path / name, faults=with_faults)
    assert ended.value.exit_code == 2
    assert words in capsys.readouterr().err


@pytest.mark.long
def test_a_stalled_rank_is_survived(tmp_path):
    finding = stall_rank(tmp_path)
    assert finding.survived, finding.line()


def test_a_run_that_cannot_start_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("highrank_plugins.reliability.trainings.binarise", lambda *folders: "none")
    monkeypatch.setattr("highrank_plugins.reliability.trainings.OPTIONS", ["--no-such-option"])
    monkeypatch.setattr("sys.executable", "/bin/false")
    finding = stall_rank(tmp_path)
    assert not finding.survived
    assert "two processes cannot train together" in finding.details
