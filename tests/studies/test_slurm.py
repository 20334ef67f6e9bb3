"""A study as an array of jobs: the members that are not done, and no line of a stranger."""

import shlex

import pytest
import yaml

from highrank_plugins.common.processes import python
from tests.studies.stub import study, write_stub, write_study
from tests.studies.test_study import rows_of


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
    done = study(file, "--slurm", "--exp-dir", exp)
    assert done.exit_code == 2 and "a batch script cannot have" in done.output
    assert done.output.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before
    assert where == "path" or f"{file}:" in done.output


@pytest.mark.parametrize("key", ["comment x --array", " array", "comment x", "", "5", "t", "wrap"])
def test_slurm_gets_names_of_options_only(tmp_path, key):
    file = write_stub(tmp_path, seeds=[1], slurm={key: "0-3"})
    done = study(file, "--slurm")
    assert done.exit_code == 2 and f"slurm: {key}: " in done.output
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
    done = study(file, "--slurm")
    assert done.exit_code == 2 and "array.sh: sbatch is missing on" in done.output
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
    assert study(file, "--table").exit_code == 0 and len(rows_of(file)) == 3
    assert "there is nothing to submit" in study(file, "--slurm").output
    write_study(tmp_path, {**yaml.safe_load(file.read_text()), "seeds": [2], "slurm": {"array": 1}})
    assert "slurm: array: the script decides" in study(file, "--slurm").output
    options = {"test_only": True}
    write_study(tmp_path, {**yaml.safe_load(file.read_text()), "slurm": options})
    assert "slurm: test-only: submits nothing" in study(file, "--slurm").output
    write_study(tmp_path, {**yaml.safe_load(file.read_text()), "slurm": {"time": "0:04:00"}})
    refused = study(file, "--slurm")
    assert refused.exit_code == 2 and "slurm: time: 0:04:00 is 240 s, but" in refused.output
