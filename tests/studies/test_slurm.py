"""Test hours, disk and commands before a study runs, and its array of jobs for SLURM."""

import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.common.processes import python
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from highrank_plugins.studies.runner import bytes_in
from tests.recipes.running import RECIPES
from tests.studies.stub import changed, refusal, starts, study, tables, write_stub, write_study


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


def test_a_dry_run_lists_members_that_this_machine_or_the_layer_cannot_run(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    for words, changes in ((["--jobs", "10000"], {}), ([], {"threads": 10000})):
        done = changed(file, "--dry-run", *words, **changes)
        assert done.exit_code == 2 and "| mos-1 | to run |" in done.stdout
        assert "10000" in done.stderr and "this machine has" in done.stderr
    one = {"conf": "small/softmax"}
    members = {"softmax": one, "wrong": one | {"set": {"head_components": 4}}}
    file = write_study(tmp_path, {"recipe": str(RECIPES / "ptb"), "members": members})
    done = study(file, "--dry-run")
    assert done.exit_code == 2 and "| wrong-1 | to run |" in done.stdout
    assert f"{file}: wrong: " in done.output and "choose a layer that has it" in done.output


def test_files_that_are_renamed_meanwhile_do_not_end_a_study(tmp_path, monkeypatch):
    """A running member writes NAME.part and renames it, also between two looks at it."""
    (tmp_path / "kept").write_text("four")
    monkeypatch.setattr(Path, "rglob", lambda *_: [tmp_path / "gone.part", tmp_path / "kept"])
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert bytes_in(tmp_path) == 4


BAD = [("key", key) for key in ("comment x --array", " array", "comment x", "", "5", "t", "wrap")]
BAD += [(at, f"x{c}touch PWNED #") for c in "\n\r\f\u2028" for at in ("value", "key", "path")]
BAD += [("value", "x\0y"), ("key", "x\0y")]  # no path has it


@pytest.mark.parametrize(("where", "bad"), BAD)
def test_slurm_gets_names_of_options_and_no_control_character_and_nothing_is_written(
    tmp_path, where, bad
):
    block = {"value": {"comment": bad}, "key": {bad: "0-3"}, "path": {}}[where]
    file = write_stub(tmp_path, seeds=[1], slurm=block)
    before = sorted(tmp_path.rglob("*"))
    said = refusal(file, "--slurm", "--exp-dir", tmp_path / (bad if where == "path" else "exp"))
    if bad.isprintable():
        assert f"slurm: {bad}: " in said and not list(tmp_path.rglob("array.sh"))
    else:
        assert "a batch script cannot have" in said and said.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        assert where == "path" or f"{file}:" in said


def test_slurm_gets_an_array_of_the_members_that_are_not_done(tmp_path, monkeypatch):
    slurm = {"partition": "cpu", "time": "01:00:00", "exclusive": True, "cpus_per_task": 3}
    slurm["comment"] = "two words"
    file = write_stub(tmp_path, seeds=[1], slurm=slurm)
    assert study(file, "--only", "mos-1").exit_code == 0
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text('#!/usr/bin/env bash\ncp "$2" "$(dirname "$0")/script"\necho 7\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    assert "array.sh: sbatch is missing on" in refusal(file, "--slurm")
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    done = study(file, "--slurm", "--jobs", 1000)  # not limited by this machine
    assert done.exit_code == 0 and "array.sh: job 7\n" in done.output
    assert done.output.endswith(" --table\n")  # nor does the login node run members
    script = (fake.parent / "script").read_text()
    assert "#SBATCH --array=0-1%1000\n" in script and "#SBATCH --partition=cpu\n" in script
    assert "#SBATCH --exclusive\n" in script and script.count("cpus-per-task") == 1
    assert "#SBATCH --comment='two words'\n" in script  # sbatch reads quotes
    assert "members=(softmax-1 mixtape-1)\n" in script  # SLURM keeps them with the script
    assert '--only "${members[SLURM_ARRAY_TASK_ID]}"' in script
    program = shlex.join(python("-m", "highrank_plugins.cli"))
    assert f"\nrun TERM {program} study " in script
    for name in ("softmax-1", "mixtape-1"):
        assert study(file, "--only", name).exit_code == 0
    assert "| mixtape | 1 |" in tables(file, "--table")
    assert "there is nothing to submit" in refusal(file, "--slurm")
    for options, why in (
        ({"array": 1}, "array: the script decides"),
        ({"test_only": True}, "test-only: submits nothing"),
        ({"time": "0:04:00"}, "time: 0:04:00 is 240 s, but"),
    ):
        assert f"slurm: {why}" in refusal(file, "--slurm", seeds=[2], slurm=options)
