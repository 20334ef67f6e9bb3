"""What comes before the members of a study: a dry run, trials of rates, SLURM's array of jobs."""

import json
import math
import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.common.processes import python
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from highrank_plugins.studies.rates import NOT_TUNED, trials_of, tuned
from highrank_plugins.studies.runner import bytes_in
from tests.recipes.running import RECIPES
from tests.studies.stub import (
    changed,
    folder_of,
    refusal,
    starts,
    study,
    tables,
    write_stub,
    write_study,
)  # fmt: skip


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


BAD = [("key", key) for key in ("comment x --array", " array", "", "5", "t")]
BAD += [(at, f"x{c}touch PWNED #") for c in "\n\u2028" for at in ("value", "key", "path")]


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
    monkeypatch.setattr("sys.argv", ["highrank", "study", "FILE", "--slurm", "--jobs", "1000"])
    done = study(file, "--slurm", "--jobs", 1000)  # not limited by this machine
    assert done.exit_code == 0 and "array.sh: job 7\n" in done.output
    # nor does the login node run members
    assert done.output.endswith(": highrank study FILE --jobs 1000 --table\n")
    script = (fake.parent / "script").read_text()
    assert "#SBATCH --array=0-1%1000\n" in script and "#SBATCH --partition=cpu\n" in script
    assert "#SBATCH --exclusive\n" in script and script.count("cpus-per-task") == 1
    assert "#SBATCH --comment='two words'\n" in script  # sbatch reads quotes
    assert "members=(softmax-1 mixtape-1)\n" in script  # SLURM keeps them with the script
    assert '--only "${members[SLURM_ARRAY_TASK_ID]}"' in script
    program = shlex.join(python("-m", "highrank_plugins.cli"))
    assert f"\nrun TERM {program} study FILE --jobs 1000 --only " in script
    for name in ("softmax-1", "mixtape-1"):
        assert study(file, "--only", name).exit_code == 0
    assert "| mixtape | 1 |" in tables(file, "--table")
    assert "there is nothing to submit" in refusal(file, "--slurm")
    for options, why in (
        ({"array": 1}, "array: the script decides"),
        ({"time": "0:04:00"}, "time: 0:04:00 is 240 s, but"),
    ):
        assert f"slurm: {why}" in refusal(file, "--slurm", seeds=[2], slurm=options)


RATES = [0.3, 1, 3]
BEST = {"softmax": 0.3, "mos": 1, "mixtape": 3}  # as the stub has it


def members_of(file):
    exp_dir = (file.parent / "exp").resolve()
    read = read_study(file)
    trials = trials_of(read, exp_dir)
    members = prepare(tuned(read, trials), exp_dir)
    return trials, members, {one.system: one.settings.train["lr"] for one in members}


def test_each_system_gets_the_best_of_its_trials_for_all_seeds(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[4, 5, 6], baseline="softmax")
    said = study(file, "--dry-run").output
    assert "9 trials of learning rates come first" in said and not starts(file)
    assert "mos_rate0.3-4" in said and "--set=lr=0.3" in said
    assert "9 of 9 members to run" in said
    text = tables(file)
    trials, _, rates = members_of(file)
    assert rates == BEST
    names = [f"{name}_rate{rate:g}-4" for name in BEST for rate in RATES]
    assert [one.name for one in trials] == names
    # a trial at the best rate is the first seed of its system: it is trained once
    assert len(starts(file)) == 3 * 3 + 3 * 2 and {*starts(file).values()} == {1}
    # the stub's losses are squares, in bits
    mean = sum(math.log(rate) ** 2 for rate in (0.3, 3)) * math.log(2) / 3
    assert f"mos 1 ({mean:.3f})" in text and NOT_TUNED not in text
    assert "softmax 0.3 (" in text and "mixtape 3 (" in text
    assert "wider ones may help: softmax, mixtape." in text
    assert not list(folder_of(file).glob("*_rate*")), "trials are no systems of the table"
    tables(file)
    assert {*starts(file).values()} == {1}
    said = study(file, "--dry-run").output
    assert "0 of 9 members to run" in said and "# mixtape-5" in said
    record = trials[0].record
    content = json.loads(record.read_text())
    del content["train"]["best_valid_loss"]
    record.write_text(json.dumps(content))
    assert "no validation loss, by which `rates` chooses" in refusal(file, "--table")


def test_short_trials_are_runs_of_their_own_and_part_of_the_plan(tmp_path):
    stated = {"baseline": "softmax", "metric": "test_perplexity", "rates_set": {"max_epoch": 2}}
    failing = {"failing": "mixtape-1-lr3.0"}  # at 3 times its rate
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2], options=failing, **stated)
    assert study(file, "--register").exit_code == 0
    text = tables(file)
    assert "As registered, plan" in text and "diverged at 3)" in text
    trials, members, rates = members_of(file)
    assert {one.settings.train["max_epoch"] for one in trials} == {2}
    assert {one.settings.train["max_epoch"] for one in members} == {36}
    assert len(starts(file)) == 9 + 6 and not {t.key for t in trials} & {m.key for m in members}
    assert rates == BEST | {"mixtape": 1}
    for changes in ({"rates": [1, 3]}, {"rates": RATES, "rates_set": {"max_epoch": 3}}):
        assert f"was registered: {[*changes][-1]}." in tables(file, **changes)


def test_a_failed_trial_stops_before_any_seed(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2], options={"failing": "mos-1-code"})
    said = refusal(file)
    assert "mos_rate0.3-1: failed with exit code 3; rates" in said
    assert "3 of 9 are not; run the study" in said and len(starts(file)) == 9
    assert "rates are chosen when all trials are done" in refusal(file, "--table")
    said = refusal(file, "--only", "softmax-2")
    assert "--only softmax-2: waits for the trials of rates: softmax_rate0.3-1, " in said
    assert study(file, "--only", "softmax_rate1-1").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rates": [1, 1]}, "rates: 1.0 is listed twice"),
        ({"rates": RATES, "set": {"lr": "1,2"}}, "rates: lr 1,2 has no multiples; give"),
        ({"rates": RATES, "rates_set": {"lr": 5}}, "rates_set.lr: changes no trial; trials have"),
        ({"rates_set": {"max_epoch": 5}}, "rates_set.max_epoch: changes no trial; give rates"),
    ],
)
def test_bad_rates_are_refused_before_a_run(tmp_path, changes, what):
    said = refusal(file := write_stub(tmp_path, **changes))
    assert what in said and len(said.splitlines()) == 1 and not starts(file)
