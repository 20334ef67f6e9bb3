"""Test studies/probe.py and studies/disk.py: hours and disk space, before and after a dry run."""

import fcntl
import json
import subprocess
import threading
import time
from argparse import Namespace

import pytest

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.prepared import prepare
from tests.recipes.running import RECIPES
from tests.studies.stub import starts, study, study_command, write_stub, write_study


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    file = write_stub(tmp_path, seeds=[1])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Namespace(free=1500))
    done = study(file, "--jobs", 1)
    assert done.exit_code == 2
    assert "kB more on the disk of" in done.output and "--exp-dir" in done.output
    assert len(starts(file)) == 1  # of the first nothing was known
    other = write_stub(tmp_path / "probed", seeds=[1])
    done = study(other, "--dry-run")
    assert done.exit_code == 2 and "kB more on the disk of" in done.output and not starts(other)
    done = study(other)  # the probes are known
    assert done.exit_code == 2 and "kB more on the disk of" in done.output and not starts(other)


def test_a_dry_run_prints_members_commands_hours_and_disk(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    done = study(file, "--dry-run", "--jobs", 2)
    assert done.exit_code == 0, done.output
    # 36 epochs of 100 updates, 2 a second
    assert "| mos-2 | to run | 0.50 |" in done.output
    assert "6 of 6 members to run, 2 at a time: 1.5 h of training, 246.9 kB" in done.output
    assert "run.sh --conf mos --name members/" in done.output
    assert not starts(file)
    assert study(file).exit_code == 0
    done = study(file, "--dry-run", "--no-probe")
    assert "| mos-2 | done |" in done.output


def test_a_dry_run_checks_the_options_of_every_system(tmp_path):
    file = write_study(
        tmp_path,
        {
            "recipe": str(RECIPES / "ptb"),
            "members": {
                "softmax": {"conf": "small/softmax"},
                "wrong": {"conf": "small/softmax", "set": {"head_components": 4}},
            },
        },
    )
    done = study(file, "--dry-run", "--no-probe")
    assert done.exit_code == 2 and not done.stdout
    assert f"{file}: wrong: " in done.output and "choose a layer that has it" in done.output


def test_a_dry_run_counts_all_checkpoints_that_a_run_keeps(tmp_path):
    """Expect 36 of epochs and 36 of every 100 updates, or those that options keep, and 3 more."""
    few = {"keep_last_epochs": 2, "save_interval_updates": 100, "keep_interval_updates": 5}
    none = {"no_epoch_checkpoints": True, "save_interval_updates": 100}
    members = {"all": {}, "few": few, "none": none, "again": {**few, "finetune.lr": 1}}
    tree = {name: {"conf": "mos", "set": options} for name, options in members.items()}
    file = write_stub(tmp_path, seeds=[1])
    write_study(tmp_path, {"members": tree, "seeds": [1]})
    assert study(file, "--dry-run").exit_code == 0
    found = {
        member.member.system: json.loads(path.read_text())["bytes"] // 1000
        for member in prepare(read_study(file), tmp_path / "exp")
        for path in [tmp_path / "exp/stub/probes" / f"{member.key}.json"]
    }
    others = 2  # kB of the log
    assert found == {
        "all": 39 + others,
        "few": 10 + others,
        "none": 39 + others,
        "again": 20 + others,
    }


def test_a_probe_that_fails_is_named_and_the_others_are_shown(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-probe"})
    done = study(file, "--dry-run", "--jobs", 1)
    assert done.exit_code == 2 and "mos-1: the probe failed with exit code 4; log: " in done.output
    assert "| mixtape-1 | to run | 0.50 |" in done.output
    assert "| mos-1 | to run | – | – |" in done.output


def test_a_probe_has_the_sizes_of_a_matched_control(tmp_path, monkeypatch):
    started = []

    def launch(words, *_):
        started.append(words)
        raise ValueError("this is enough")

    monkeypatch.setattr("highrank_plugins.studies.prepared._matched", lambda *_: {"lr": 7})
    monkeypatch.setattr("highrank_plugins.studies.probe.launch", launch)
    study(write_stub(tmp_path, seeds=[1]), "--dry-run", "--jobs", 1)
    assert len(started) == 3
    assert all({"--set=lr=7", "--set=max_update=20"} < {*words} for words in started)


def test_a_probe_that_is_stopped_ends_its_recipe(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"pause": 30})
    process = subprocess.Popen(study_command(file, "--dry-run"), stderr=subprocess.PIPE)
    (folder,) = _wait_for(lambda: list((tmp_path / "exp/stub/probes").glob("*/starts")))
    process.terminate()
    assert process.wait(20) == 128 + 15
    with (folder.parent / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody works there


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_a_damaged_file_of_a_probe_is_measured_again(tmp_path, text):
    file = write_stub(tmp_path, seeds=[1])
    whole = study(file, "--dry-run").output
    for kept in (tmp_path / "exp/stub/probes").glob("*.json"):
        kept.write_text(text)
    assert study(file, "--dry-run").output == whole


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("probes", ["--dry-run"], "| softmax-1 | to run | 0.50 |"),
        ("members", [], "softmax-1: waiting for a process that works in "),
    ],
)
def test_a_recipe_that_outlived_its_command_is_waited_for(tmp_path, kind, words, message):
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    script.write_text(script.read_text().replace("flock --wait 5", "flock --nonblock"))
    member = prepare(read_study(file), tmp_path / "exp")[0]
    lock = tmp_path / "exp" / "stub" / kind / member.key / ".lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as outlived:
        fcntl.flock(outlived, fcntl.LOCK_EX)
        threading.Timer(0.3, outlived.close).start()
        done = study(file, *words)
    assert done.exit_code == 0 and message in done.output


def _wait_for(found):
    until = time.monotonic() + 60
    while not (result := found()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return result
