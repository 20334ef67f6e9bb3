"""Test the disk check of a study and `highrank study --dry-run`: hours and disk to come."""

import fcntl
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from highrank_plugins.studies.runner import bytes_in
from tests.recipes.running import RECIPES
from tests.studies.stub import changed, refusal, starts, study, write_stub, write_study


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    file = write_stub(tmp_path, seeds=[1])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Namespace(free=1500))
    for words in (["--jobs", 1], ["--dry-run"]):
        said = refusal(file, *words)
        assert "kB are needed on the disk of" in said and "--exp-dir" in said
        assert len(starts(file)) == 1  # of the first nothing was known


def test_a_dry_run_prints_members_commands_hours_and_disk(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    done = study(file, "--dry-run", "--jobs", 2)
    assert done.exit_code == 0, done.output
    assert "| mos-1 | to run | – | – |" in done.output
    assert "3 of 3 members to run, 2 at a time: unknown hours, since no finished " in done.output
    assert "run.sh --conf mos --name members/" in done.output
    assert not starts(file)
    assert study(file).exit_code == 0
    for member in prepare(read_study(file), tmp_path / "exp"):
        record = read_json(member.record)
        record["train"]["wall_seconds"] = 1800
        write_json(member.record, record)
        (member.run_dir / "model.pt").write_bytes(bytes(2_000_000))
    done = changed(file, "--dry-run", "--jobs", 2, seeds=[1, 2, 3])
    assert done.exit_code == 0, done.output
    assert "| mos-1 | done | 0.50 | 2 |" in done.output
    assert "| mos-2 | to run | – | – |" in done.output
    # six members on two slots, each as the finished one of its system
    assert "6 of 9 members to run, 2 at a time: 1.5 h of training, 12.0 MB" in done.output


@pytest.mark.parametrize("words", [["--jobs", "10000"], []])
def test_a_dry_run_lists_members_that_this_machine_cannot_run(tmp_path, words):
    file = write_stub(tmp_path, seeds=[1], **({} if words else {"threads": 10000}))
    done = study(file, "--dry-run", *words)
    assert done.exit_code == 2 and "| mos-1 | to run |" in done.stdout
    assert "10000" in done.stderr and "this machine has" in done.stderr


def test_a_dry_run_checks_the_options_of_every_system(tmp_path):
    one = {"conf": "small/softmax"}
    members = {"softmax": one, "wrong": one | {"set": {"head_components": 4}}}
    file = write_study(tmp_path, {"recipe": str(RECIPES / "ptb"), "members": members})
    done = study(file, "--dry-run")
    assert done.exit_code == 2 and "| wrong-1 | to run |" in done.stdout
    assert f"{file}: wrong: " in done.output and "choose a layer that has it" in done.output


def test_a_recipe_that_outlived_its_command_is_waited_for(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    script.write_text(script.read_text().replace("flock --wait 5", "flock --nonblock"))
    member = prepare(read_study(file), tmp_path / "exp")[0]
    lock = tmp_path / "exp" / "stub" / "members" / member.key / ".lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as outlived:
        fcntl.flock(outlived, fcntl.LOCK_EX)
        threading.Timer(1.5, outlived.close).start()
        done = study(file)
    assert done.exit_code == 0
    assert "softmax-1: waiting for a process that works in " in done.output


def test_files_that_are_renamed_meanwhile_do_not_end_a_study(tmp_path, monkeypatch):
    """A running member writes NAME.part and renames it, also between two looks at it."""
    (tmp_path / "kept").write_text("four")
    monkeypatch.setattr(Path, "rglob", lambda *_: [tmp_path / "gone.part", tmp_path / "kept"])
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert bytes_in(tmp_path) == 4
