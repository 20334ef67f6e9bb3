"""Test the plan of a study, its machines, and studies that are too large."""

import fcntl
import json
from math import log, sqrt
from statistics import mean, variance

import pytest

from highrank_plugins.analysis.statistics import seeds_needed, smallest_effect
from highrank_plugins.common.blocks import ConfigurationError, read_tree
from highrank_plugins.common.folders import held
from highrank_plugins.common.provenance import hardware
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.table import LATE
from tests.results.entries import record_of
from tests.studies.stub import (
    changed,
    folder_of,
    refusal,
    starts,
    study,
    tables,
    write_stub,
    write_study,
)

TWO = {name: {"conf": name} for name in ("softmax", "mos")}
BOTH = {"baseline": "softmax", "metric": "test_perplexity"}  # what a plan states


def test_tests_wait_for_the_seeds_that_were_planned(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax")
    for name in ("softmax-1", "mos-1", "mixtape-1"):
        assert study(file, "--only", name, "--at-most", "3").exit_code == 0
    text = tables(file, "--table")
    assert "not all of the planned seeds (3 of each system or more) are done" in text
    assert "**" not in text and "p Holm" not in text and "place" not in text
    text = tables(file)  # the plan is kept
    assert "p Holm" in text and "p (Holm)" not in text and len(starts(file)) == 9
    looks = "t-test, made sequential for looks at 3 to 4 seeds, of all 3 pairs"
    assert looks in text and "(Holm); intervals are not, but hold at every look." in text
    text = tables(file, "--at-most", "4")
    assert looks in text and "Beyond the plan" not in text and len(starts(file)) == 12
    assert "not all of the planned seeds" in tables(file, "--table", "--at-most", "2")
    text = tables(file, "--at-most", "5", seeds=[1, 2, 3, 4, 5])
    assert "Beyond the plan: it had 4 seeds of each system at most." in text
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text


def test_a_registered_plan_may_have_several_looks(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], **BOTH)
    file.write_text("# Which layer?\n" + file.read_text())
    assert study(file, "--register", "--at-most", "2").exit_code == 0
    plan = json.loads((folder_of(file) / "plan.json").read_text())
    assert (plan["seeds"], plan["most"], len(plan["keys"])) == (2, 3, 9)
    assert plan["question"] == "Which layer?"
    for seeds in (2, 3):
        text = tables(file, "--at-most", seeds)
        assert "As registered" in text and "sequential for looks at 2 to 3 seeds" in text
    said = refusal(file, "--at-most", "4")
    assert "--at-most 4: " in said and "lists 3 seeds; list more" in said
    file.write_text("# Which loss?\n" + file.read_text().partition("\n")[2])
    text = tables(file, "--at-most", "3")
    assert "was registered: question." in text and "As registered" not in text


def test_a_study_is_held_to_its_registered_plan(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2], members=TWO, **BOTH)
    said = refusal(file, "--register", "--effect", "0.01")
    assert "give --like FOLDER of a study like it" in said
    assert study(file, "--register").exit_code == 0
    plan = folder_of(file) / "plan.json"
    assert json.loads(plan.read_text())["seeds"] == 2 and not starts(file)
    short = json.loads(plan.read_text())["sha256"][:12]
    assert f"As registered, plan {short}." in tables(file)
    assert "has a plan already" in refusal(file, "--register")
    assert changed(file, "--only", "mos-1", test="welch", set={"lr": 2}).exit_code == 0
    members = "test, softmax-1, softmax-2, mos-1, mos-2"
    said = f"Changed since the plan {short} was registered: {members}."
    assert said in tables(file, "--table")
    plan.write_text(plan.read_text().replace("softmax-1", "softmax-9"))
    assert "plan.json: changed after it was registered" in refusal(file, "--table")


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
    file = write_stub(tmp_path, seeds=[1, 2, 3], members=TWO, **BOTH)
    assert study(file, "--register").exit_code == 0
    own = seeds if isinstance(seeds, dict) else {}  # of one system alone
    listed = {name: {"conf": name} for name in names.split()}
    for name, some in own.items():
        listed[name]["seeds"] = some
    text = tables(file, seeds=[1, 2, 3] if own else seeds, members=listed)
    assert len(starts(file)) == 3 * len(names.split()) - len(own)
    assert ("p Holm" in text) == ("egistered" in said)
    assert said in text and ("As registered" in text) == ("As" in said)
    more = seeds == [1, 2, 3, 4]
    note = "the plan has 3 of the 4 seeds; --at-most 4 takes all"
    assert (note in study(file, "--table").output) == more
    if more:
        text = tables(file, "--at-most", "4")
        assert "Beyond the plan: it had 3 seeds" in text and "As registered" not in text


def test_the_first_look_keeps_metric_seeds_and_members(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], **BOTH)
    text = tables(file, "--at-most", "2")
    assert "p Holm" in text and "registered" not in text and "Changed" not in text
    said = "Changed since the plan of the first look: metric."
    assert said in tables(file, metric="valid_perplexity")
    text = tables(file, seeds=[5, 6, 7, 8], metric="test_perplexity")
    assert "mos has seeds 5, 6 (planned: 1, 2, 3, 4)" in text
    assert f"since {LATE}: " in text and "p Holm" not in text


def test_a_seed_that_diverged_takes_the_test_of_its_system_alone(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", options={"failing": "mos-2"})
    text = tables(file, "--at-most", "3", code=1)
    assert "mos-2: diverged" in text and "p Holm" in text


@pytest.mark.parametrize(
    ("first", "words", "changes", "why"),
    [
        ("", "--register", {"seeds": [1]}, "--register: one seed of each system; list two"),
        ("", "--register", {"metric": None}, "--register: no metric, which a plan states"),
        ("", "--register", {"baseline": None}, "--register: no baseline, which a plan states"),
        ("mos-2", "--register", {}, "--register: mos-2 has been run"),
        ("mos_rate3-1", "--register", {"rates": [1, 3]}, "--register: mos_rate3-1 has been run"),
        ("", "--register --jobs 1", {}, "changes nothing with --register"),
        ("", "--effect 1 --all-tests", {}, "changes nothing with --effect"),
        ("", "--like records", {}, "--like: tells --effect"),
        ("", "--effect 0 --like .", {}, "--effect 0: must be above 0"),
        ("", "--effect 1 --table", {}, "--table and --effect exclude each other"),
    ],
)
def test_plans_that_cannot_be_made_are_refused(tmp_path, first, words, changes, why):
    tree = {"seeds": [1, 2], **BOTH} | changes
    file = write_stub(tmp_path, **{name: value for name, value in tree.items() if value})
    assert not first or study(file, "--only", first).exit_code == 0
    assert why in refusal(file, *words.split())
    assert not (folder_of(file) / "plan.json").exists()


def test_an_effect_needs_seeds_and_hours(tmp_path):
    """Deviations by hand: perplexities of the logarithm, pooled over the systems."""
    file = write_stub(tmp_path, seeds=[1, 2, 3])
    records = tmp_path / "like"
    records.mkdir()

    def write(name, values):
        for seed, value in enumerate(values, 1):
            record = record_of({"test_perplexity": value}, seed, signature="a")
            record["config"] = {"train": {"arch": name}}
            record["train"] |= {"wall_seconds": 1800}
            (records / f"{name}-{seed}.json").write_text(json.dumps(record))

    runs = {"softmax": (80.0, 80.4, 79.8), "mos": (78.0, 78.1, 78.5)}
    for name, values in runs.items():
        write(name, values)
    deviation = sqrt(mean(variance(map(log, values)) for values in runs.values()))
    done = study(file, "--effect", "0.01", "--like", str(records))
    assert done.exit_code == 0 and not starts(file), done.output
    first, second, third = done.output.splitlines()
    assert first.startswith(f"Seeds deviate by {deviation:.2g} nats, pooled over 2 systems of")
    least = deviation * smallest_effect(3, 0.05 / 2)
    assert f"find a true difference of {least:.2g} nats in 80 % of studies, adjusted" in second
    seeds = seeds_needed(0.01 / deviation, 0.05 / 2)
    needed = f"{seeds} seeds of each: {3 * seeds} runs, {3 * seeds / 2:.1f} hours of training."
    assert third == f"0.01 nats need {needed}"
    write("wild", (60.0, 70.0, 85.0))
    said = study(file, "--effect", "0.01", "--like", str(records)).output.splitlines()
    assert said[0] == "Left out, since seeds deviate as where some failed to train: wild."
    assert said[1:] == done.output.splitlines()


def test_a_seed_runs_on_one_kind_of_machine(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2], baseline="softmax")
    assert study(file, "--only", "softmax-1").exit_code == 0
    (record,) = tmp_path.rglob("members/*/results.json")
    found = json.loads(record.read_text())
    here = {name: value for name, value in hardware().items() if name != "memory_gib"}
    record.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
    said = refusal(file)
    assert "softmax-1 ran on" in said and "family other" in said and len(starts(file)) == 1
    record.write_text(json.dumps(found | {"hardware": here}))
    tables(file)
    paths = [path for path in tmp_path.rglob("members/*/results.json") if path != record]
    other = next(path for path in paths if json.loads(path.read_text())["seeds"] == [1])
    there = {"hardware": here | {"family": "other"}}
    other.write_text(json.dumps(json.loads(other.read_text()) | there))
    assert "machines of several kinds ran seed 1" in tables(file, "--table")


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
        with held(lock, "folder", "study") as is_locked:
            assert is_locked and lock.stat().st_mode & 0o007 == 0
