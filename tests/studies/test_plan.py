"""Test the plan of a study, its machines, and studies that are too large."""

import fcntl
import json
from math import log, sqrt
from statistics import mean, variance

import pytest
import yaml
from typer.testing import CliRunner

from highrank_plugins.analysis.statistics import seeds_needed, smallest_effect
from highrank_plugins.cli import app
from highrank_plugins.common.blocks import ConfigurationError, read_tree
from highrank_plugins.common.folders import held_alone
from highrank_plugins.common.provenance import hardware
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.table import LATE
from tests.studies.stub import folder_of, starts, study, table_of, write_stub, write_study


def test_tests_wait_for_the_seeds_that_were_planned(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax")
    for name in ("softmax-1", "mos-1", "mixtape-1"):
        assert study(file, "--only", name, "--at-most", "3").exit_code == 0
    assert study(file, "--table").exit_code == 0
    text = table_of(file).decode()
    assert "not all of the planned seeds (3 of each system or more) are done" in text
    assert "**" not in text and "p Holm" not in text and "place" not in text
    assert study(file).exit_code == 0  # the plan is kept
    text = table_of(file).decode()
    assert "p Holm" in text and "p (Holm)" not in text and len(starts(file)) == 9
    looks = "t-test, made sequential for looks at 3 to 4 seeds, of all 3 pairs"
    assert looks in text and "(Holm); intervals are not, but hold at every look." in text
    assert study(file, "--at-most", "4").exit_code == 0 and len(starts(file)) == 12
    text = table_of(file).decode()
    assert looks in text and "Beyond the plan" not in text
    assert study(file, "--table", "--at-most", "2").exit_code == 0
    assert "not all of the planned seeds" in table_of(file).decode()
    write_study(tmp_path, yaml.safe_load(file.read_text()) | {"seeds": [1, 2, 3, 4, 5]})
    assert study(file, "--at-most", "5").exit_code == 0
    text = table_of(file).decode()
    assert "Beyond the plan: it had 4 seeds of each system at most." in text
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text
    plan = folder_of(file) / "plan.json"
    known = json.loads(plan.read_text())
    for changes in ({"seeds": 5, "most": 2}, {"most": 3000000}, {"keys": [1]}, {"keys": {"a": 1}}):
        plan.write_text(json.dumps(known | changes))
        done = study(file)
        assert done.exit_code == 2 and "plan.json: damaged; restore it" in done.output


def test_compare_leaves_the_tests_of_several_looks_to_the_study(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax")
    assert study(file, "--at-most", "3").exit_code == 0
    links = sorted(folder_of(file).glob("*-*/results.json"))
    words = ["compare", *map(str, links), "--metric", "test_perplexity", "--all-tests"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "p (Holm)" not in done.output and "**" not in done.output
    assert "since seeds may be added to their study" in done.output
    (folder_of(file) / "plan.json").write_text('{"seeds": 3, "most": 3, "keys": {}}')
    assert study(file, "--table").exit_code == 0
    assert "p (Holm)" in CliRunner().invoke(app, words).output


def test_seeds_that_are_added_after_a_tested_table_have_no_test(tmp_path):
    """The first look spent all of alpha; other systems, and a new study, may be added."""
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax")
    tree = yaml.safe_load(file.read_text())
    two = {"softmax": {"conf": "softmax"}, "mos": {"conf": "mos"}}
    write_study(tmp_path, tree | {"members": two})
    for name in ("softmax-1", "softmax-2", "mos-1", "mos-2"):
        assert study(file, "--only", name).exit_code == 0
    assert study(file, "--table").exit_code == 0  # no look, since nothing is tested
    assert "Not tested, since not all seeds are done: softmax, mos." in table_of(file).decode()
    assert study(file).exit_code == 0
    assert "Student's unpaired two-sided t-test of the pair" in table_of(file).decode()
    write_study(tmp_path, tree)
    assert study(file).exit_code == 0 and "p Holm" in table_of(file).decode()
    stated = {"metric": "test_perplexity", "baseline": "softmax"}  # as by default
    write_study(tmp_path, tree | stated)
    assert study(file).exit_code == 0 and "Changed since" not in table_of(file).decode()
    write_study(tmp_path, tree | {"metric": "valid_perplexity"})
    assert study(file).exit_code == 0
    assert "further one: metric (was test_perplexity)." in table_of(file).decode()
    write_study(tmp_path, tree | {"seeds": [1, 2, 3, 4]})
    for _ in range(2):
        assert study(file).exit_code == 0
        text = table_of(file).decode()
        assert f"Not tested, since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text
    write_study(tmp_path, tree | {"seeds": [1, 2, 3, 4], "set": {"lr": 2}})
    assert study(file).exit_code == 0 and "p Holm" in table_of(file).decode()


def test_a_registered_plan_may_have_several_looks(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", metric="test_perplexity")
    file.write_text("# Which layer?\n" + file.read_text())
    assert study(file, "--register", "--at-most", "2").exit_code == 0
    plan = json.loads((folder_of(file) / "plan.json").read_text())
    assert (plan["seeds"], plan["most"], len(plan["keys"])) == (2, 3, 9)
    assert plan["question"] == "Which layer?"
    for seeds in (2, 3):
        assert study(file, "--at-most", str(seeds)).exit_code == 0
        text = table_of(file).decode()
        assert "As registered" in text and "sequential for looks at 2 to 3 seeds" in text
    refused = study(file, "--at-most", "4")
    assert refused.exit_code == 2 and "--at-most 4: " in refused.output
    assert "lists 3 seeds; list more" in refused.output
    file.write_text("# Which loss?\n" + file.read_text().partition("\n")[2])
    assert study(file, "--at-most", "3").exit_code == 0
    text = table_of(file).decode()
    assert "was registered: question." in text and "As registered" not in text


def test_a_study_is_held_to_its_registered_plan(tmp_path):
    members = {name: {"conf": name} for name in ("softmax", "mos")}
    of = {"baseline": "softmax", "metric": "test_perplexity", "members": members}
    file = write_stub(tmp_path, seeds=[1, 2], **of)
    done = study(file, "--register", "--effect", "0.01")
    assert done.exit_code == 2 and "give --like FOLDER of a study like it" in done.output
    assert study(file, "--register").exit_code == 0
    plan = folder_of(file) / "plan.json"
    assert json.loads(plan.read_text())["seeds"] == 2 and not starts(file)
    assert study(file).exit_code == 0
    short = json.loads(plan.read_text())["sha256"][:12]
    assert f"As registered, plan {short}." in table_of(file).decode()
    again = study(file, "--register")
    assert again.exit_code == 2 and "has a plan already" in again.output

    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(tree | {"test": "welch", "set": {"lr": 2}}))
    assert study(file, "--only", "mos-1").exit_code == study(file, "--table").exit_code == 0
    changed = "test, softmax-1, softmax-2, mos-1, mos-2"
    found = table_of(file).decode()
    assert f"Changed since the plan {short} was registered: {changed}." in found
    plan.write_text(plan.read_text().replace("softmax-1", "softmax-9"))
    moved = study(file, "--table")
    assert moved.exit_code == 2 and "plan.json: changed after it was registered" in moved.output


@pytest.mark.parametrize(
    ("seeds", "names", "said"),
    [
        ([2, 3, 4], "softmax mos", "softmax has seeds 2, 3, 4 (planned: 1, 2, 3), mos has"),
        ([1, 2, 3], "softmax", "mos is missing (planned: 1, 2, 3)."),
        ([1, 2, 3], "softmax mos mixtape", "registered: mixtape is new."),
        ([1, 2, 3, 4], "softmax mos", "As registered"),
        ({"mos": [1, 2]}, "softmax mos", "mos has seeds 1, 2 (planned: 1, 2, 3)."),
        ({"softmax": [1, 2]}, "softmax mos", "softmax has seeds 1, 2 (planned: 1, 2, 3)."),
    ],
)
def test_other_seeds_and_systems_than_registered_are_named(tmp_path, seeds, names, said):
    members = {name: {"conf": name} for name in ("softmax", "mos")}
    of = {"baseline": "softmax", "metric": "test_perplexity", "members": members}
    file = write_stub(tmp_path, seeds=[1, 2, 3], **of)
    assert study(file, "--register").exit_code == 0
    tree = yaml.safe_load(file.read_text())
    own = seeds if isinstance(seeds, dict) else {}  # of one system alone
    listed = {name: {"conf": name} for name in names.split()}
    for name, some in own.items():
        listed[name]["seeds"] = some
    now = tree | {"seeds": [1, 2, 3] if own else seeds, "members": listed}
    file.write_text(yaml.safe_dump(now, sort_keys=False))
    done = study(file)
    assert done.exit_code == 0
    assert len(starts(file)) == 3 * len(names.split()) - len(own)
    text = table_of(file).decode()
    assert ("p Holm" in text) == ("egistered" in said)
    assert said in text and ("As registered" in text) == ("As" in said)
    more = seeds == [1, 2, 3, 4]
    assert ("the plan has 3 of the 4 seeds; --at-most 4 takes all" in done.output) == more
    if more:
        assert study(file, "--at-most", "4").exit_code == 0
        text = table_of(file).decode()
        assert "Beyond the plan: it had 3 seeds" in text and "As registered" not in text


def test_the_first_look_keeps_metric_seeds_and_members(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax", metric="test_perplexity")
    assert study(file, "--at-most", "2").exit_code == 0
    text = table_of(file).decode()
    assert "p Holm" in text and "registered" not in text and "Changed" not in text
    tree = yaml.safe_load(file.read_text())
    write_study(tmp_path, tree | {"metric": "valid_perplexity"})
    assert study(file).exit_code == 0
    assert "Changed since the plan of the first look: metric." in table_of(file).decode()
    write_study(tmp_path, tree | {"seeds": [5, 6, 7, 8]})
    assert study(file).exit_code == 0
    text = table_of(file).decode()
    assert "mos has seeds 5, 6 (planned: 1, 2, 3, 4)" in text
    assert f"since {LATE}: " in text and "p Holm" not in text


@pytest.mark.parametrize("members", [[4, 5, 6], [1, 2]])
def test_other_seeds_than_those_of_a_tested_table_have_no_test(tmp_path, members):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax")
    assert study(file).exit_code == 0 and "p Holm" in table_of(file).decode()
    tree = yaml.safe_load(file.read_text())
    write_study(tmp_path, tree | {"seeds": members})
    assert study(file).exit_code == 0
    text = table_of(file).decode()
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text


def test_a_seed_that_diverged_takes_the_test_of_its_system_alone(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", options={"failing": "mos-2"})
    assert study(file, "--at-most", "3").exit_code == 1
    text = table_of(file).decode()
    assert "mos-2: diverged" in text and "p Holm" in text


def test_a_plan_needs_two_seeds_and_comes_before_the_trials_of_rates(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    done = study(file, "--register")
    assert done.exit_code == 2 and "--register: one seed of each system; list two" in done.output
    for words in (["--register", "--jobs", "1"], ["--effect", "1", "--all-tests"]):
        done = study(file, *words)
        assert done.exit_code == 2 and "changes nothing with --" in done.output
    assert not (folder_of(file) / "plan.json").exists()
    write_study(tmp_path, yaml.safe_load(file.read_text()) | {"seeds": [1, 2], "rates": [1, 3]})
    assert study(file, "--only", "mos_rate3-1").exit_code == 0
    done = study(file, "--register")
    assert done.exit_code == 2 and "--register: mos_rate3-1 has been run" in done.output


def test_a_plan_is_made_before_the_first_run(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    assert study(file, "--only", "mos-2").exit_code == 0
    done = study(file, "--register")
    assert done.exit_code == 2 and "mos-2 has been run" in done.output
    assert not (folder_of(file) / "plan.json").exists()


def test_an_effect_needs_seeds_and_hours(tmp_path):
    """Deviations by hand: perplexities of the logarithm, pooled over the systems."""
    file = write_stub(tmp_path, seeds=[1, 2, 3])
    records = tmp_path / "like"
    records.mkdir()
    runs = {"softmax": (80.0, 80.4, 79.8), "mos": (78.0, 78.1, 78.5)}
    for name, values in runs.items():
        for seed, value in enumerate(values, 1):
            record = {"metrics": {"test_perplexity": value}, "signature": "a", "seeds": [seed]}
            record |= {
                "train": {"updates": 9, "wall_seconds": 1800, "words_per_second": 9},
                "config": {"train": {"arch": name}},
            }
            record |= {"hardware": {"cores": 1}, "versions": {"torch": "2"}, "git": None}
            (records / f"{name}-{seed}.json").write_text(json.dumps(record))
    squares = [variance(map(log, values)) for values in runs.values()]
    deviation = sqrt(mean(squares))
    done = study(file, "--effect", "0.01", "--like", str(records))
    assert done.exit_code == 0 and not starts(file), done.output
    first, second, third = done.output.splitlines()
    assert first.startswith(f"Seeds deviate by {deviation:.2g} nats, pooled over 2 systems of")
    least = deviation * smallest_effect(3, 0.05 / 2)
    assert f"find a true difference of {least:.2g} nats in 80 % of studies, adjusted" in second
    seeds = seeds_needed(0.01 / deviation, 0.05 / 2)
    hours = 3 * seeds / 2
    assert (
        third
        == f"0.01 nats need {seeds} seeds of each: {3 * seeds} runs, {hours:.1f} hours of training."
    )
    for seed, value in enumerate((60.0, 70.0, 85.0), 1):
        wild = records / f"wild-{seed}.json"
        wild.write_text((records / f"mos-{seed}.json").read_text().replace('"mos"', '"wild"'))
        changed = json.loads(wild.read_text()) | {"metrics": {"test_perplexity": value}}
        wild.write_text(json.dumps(changed))
    said = study(file, "--effect", "0.01", "--like", str(records)).output.splitlines()
    assert said[0] == "Left out, since seeds deviate as where some failed to train: wild."
    assert said[1:] == done.output.splitlines()
    for arguments, why in (
        (("--like", str(records)), "--like: tells --effect"),
        (("--effect", "0", "--like", str(records)), "--effect 0: must be above 0"),
        (("--effect", "1", "--table"), "--table and --effect exclude each other"),
    ):
        refused = study(file, *arguments)
        assert refused.exit_code == 2 and why in refused.output


def test_a_seed_runs_on_one_kind_of_machine(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2], baseline="softmax")
    assert study(file, "--only", "softmax-1").exit_code == 0
    (record,) = tmp_path.rglob("members/*/results.json")
    found = json.loads(record.read_text())
    here = {name: value for name, value in hardware().items() if name != "memory_gib"}
    record.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
    done = study(file)
    assert (
        done.exit_code == 2 and "softmax-1 ran on" in done.output and "family other" in done.output
    )
    assert len(starts(file)) == 1
    record.write_text(json.dumps(found | {"hardware": here}))
    assert study(file).exit_code == 0
    other = next(path for path in tmp_path.rglob("members/*/results.json") if path != record)
    found = json.loads(other.read_text())
    seed = found["seeds"][0]
    if seed == 1:
        other.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
        assert study(file, "--table").exit_code == 0
        assert "machines of several kinds ran seed 1" in table_of(file).decode()


def test_a_study_of_too_many_members_is_refused_before_they_are_made(tmp_path):
    file = write_stub(tmp_path)
    grid = {"lr": list(range(100)), "dropout": list(range(100))}
    tree = {"members": {"a": {"conf": "mos", "grid": grid}}, "seeds": [1, 2]}
    with pytest.raises(ConfigurationError, match=r"20,000 members, and a study has 10,000"):
        read_study(write_study(tmp_path, tree, "large"))
    file.write_text("a: " + "1" * (1 << 20))
    with pytest.raises(ConfigurationError, match=r"1\.0 MB are read at most"):
        read_tree(file)


def test_who_reads_a_lock_file_holds_nobody(tmp_path):
    lock = tmp_path / ".lock"
    lock.touch(0o644)
    with lock.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        with held_alone(lock, "busy") as file:
            assert file.fileno() and lock.stat().st_mode & 0o007 == 0
