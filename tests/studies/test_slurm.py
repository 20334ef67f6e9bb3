"""A study as an array of jobs: the members that are not done, and no line of a stranger."""

import shlex

import pytest

from highrank_plugins.common.processes import python
from tests.studies.stub import refusal, study, tables, write_stub


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\f", "\u2028"])
@pytest.mark.parametrize("where", ["value", "key", "path"])
def test_slurm_gets_no_control_character_and_nothing_is_written(tmp_path, where, character):
    bad = f"x{character}touch PWNED #"
    block = {"value": {"comment": bad}, "key": {bad: "x"}, "path": {}}[where]
    if where == "path" and character == "\0":
        pytest.skip("no path has it")
    file = write_stub(tmp_path, seeds=[1], slurm=block)
    before = sorted(tmp_path.rglob("*"))
    exp = tmp_path / (bad if where == "path" else "exp")
    said = refusal(file, "--slurm", "--exp-dir", exp)
    assert "a batch script cannot have" in said
    assert said.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before
    assert where == "path" or f"{file}:" in said


@pytest.mark.parametrize("key", ["comment x --array", " array", "comment x", "", "5", "t", "wrap"])
def test_slurm_gets_names_of_options_only(tmp_path, key):
    file = write_stub(tmp_path, seeds=[1], slurm={key: "0-3"})
    assert f"slurm: {key}: " in refusal(file, "--slurm")
    assert not list(tmp_path.rglob("array.sh"))


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
