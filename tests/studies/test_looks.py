"""A table with tests is a look: seeds that come, go or change after it leave no further test."""

import json

import pytest

from highrank_plugins.studies.table import LATE
from tests.studies.stub import compared, folder_of, refusal, study, tables, write_stub, write_study

TWO = {name: {"conf": name} for name in ("softmax", "mos")}
OF = {"members": TWO, "baseline": "softmax", "metric": "test_perplexity"}


@pytest.fixture
def file(tmp_path):
    """Return a study of two systems with three seeds, which has been tested."""
    found = write_stub(tmp_path, seeds=[1, 2, 3], **OF)
    assert "p Holm" in tables(found)
    return found


def test_a_plan_after_a_tested_table_is_too_late(file):
    text = tables(file, "--at-most", "4", seeds=[1, 2, 3, 4, 5])
    assert f"since {LATE}: softmax, mos." in text and "p Holm" not in text
    assert "p (Holm)" not in compared(file) and LATE in compared(file)


@pytest.mark.parametrize("seeds", [[4, 5, 6], [1, 2]])
def test_other_seeds_than_those_of_a_tested_table_have_no_test(file, seeds):
    text = tables(file, seeds=seeds)
    assert f"since {LATE}: softmax, mos." in text and "p Holm" not in text


def test_each_configuration_has_its_first_look(file):
    assert "p Holm" in tables(file, set={"lr": 2})  # another study
    assert "p Holm" not in tables(file, set={"lr": 2}, seeds=[1, 2, 3, 4])
    assert "p Holm" not in tables(file, set={}, seeds=[1, 2, 3, 4])
    members = TWO | {"mos": {"conf": "mos", "set": {"lr": 3}}}
    text = tables(file, seeds=[1, 2, 3, 4], members=members)
    assert f"since {LATE}: softmax." in text and "p Holm" not in text


def test_systems_that_come_later_are_held_too_and_under_any_name(file):
    added = TWO | {"mixtape": {"conf": "mixtape"}}
    assert "p Holm" in tables(file, members=added)
    other = added | {"mixtape": {"conf": "mixtape", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: mixtape." in tables(file, members=other)
    renamed = {"softmax": {"conf": "softmax"}, "m2": {"conf": "mos", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: m2." in tables(file, members=renamed)


@pytest.mark.parametrize(
    ("failing", "why"),
    [("mos-2-code", "a seed has no result"), ("mos-2", "a seed diverged"), ("softmax-2", "")],
)
def test_a_seed_without_a_result_holds_its_system(tmp_path, failing, why):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", options={"failing": failing})
    text = tables(file, code=1)
    assert f"Not tested, since {why}" in text and ("p Holm" in text) == bool(why)  # of the third
    text = tables(file, seeds=[1, 3])  # its seed is left out
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text


def test_the_order_of_seeds_and_two_systems_of_one_configuration_change_nothing(file):
    assert "p Holm" in tables(file, seeds=[3, 1, 2])
    again = TWO | {"softmax_again": {"conf": "softmax", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: softmax, softmax_again." in tables(file, members=again)
    assert "p Holm" in tables(file, members=again, set={"lr": 3})
    assert "p Holm" in tables(file, "--table")


def test_compare_does_not_add_the_seeds_of_two_studies(file):
    second = write_study(file.parent, {**OF, "seeds": [4, 5, 6]}, "second")
    tables(second)
    found = compared(file, second)
    assert "since its runs are of several studies: " in found and "p (Holm)" not in found


def test_compare_tests_what_the_study_tests(file):
    assert "p (Holm)" in compared(file)
    found = compared(file, links="*-[12]")
    assert "since their study has 3 seeds of each: " in found and "p (Holm)" not in found
    tables(file, seeds=[1, 2, 3, 4])
    assert "p (Holm)" not in compared(file)
    for name in ("untested.json", "looks.json"):
        (folder_of(file) / name).write_text("[1]")
    assert "untested.json: damaged; run the study with --table" in compared(file)
    assert "looks.json: damaged; restore it" in refusal(file, "--table")


def test_compare_leaves_the_tests_of_several_looks_to_the_study(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax")
    tables(file, "--at-most", "3")
    found = compared(file)
    assert "since seeds may be added to their study" in found
    assert "p (Holm)" not in found and "**" not in found
    (folder_of(file) / "plan.json").write_text('{"seeds": 3, "most": 3, "keys": {}}')
    tables(file, "--table")
    assert "p (Holm)" in compared(file)


def test_seeds_that_are_added_after_a_tested_table_have_no_test(tmp_path):
    """The first look spent all of alpha; other systems, and a new study, may be added."""
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", members=TWO)
    for name in ("softmax-1", "softmax-2", "mos-1", "mos-2"):
        assert study(file, "--only", name).exit_code == 0
    # no look, since nothing is tested
    assert "Not tested, since not all seeds are done: softmax, mos." in tables(file, "--table")
    assert "Student's unpaired two-sided t-test of the pair" in tables(file)
    assert "p Holm" in tables(file, members=TWO | {"mixtape": {"conf": "mixtape"}})
    stated = {"metric": "test_perplexity", "baseline": "softmax"}  # as by default
    assert "Changed since" not in tables(file, **stated)
    said = "further one: metric (was test_perplexity)."
    assert said in tables(file, metric="valid_perplexity")
    for _ in range(2):
        text = tables(file, seeds=[1, 2, 3, 4], metric="test_perplexity")
        assert f"Not tested, since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text
    assert "p Holm" in tables(file, set={"lr": 2})


def test_finished_members_tell_an_effect(file):
    of_stub = "the seeds of all systems in the finished members of this study deviate as where some"
    assert of_stub in refusal(file, "--effect", "0.01")
    for run in folder_of(file).glob("*-*/results.json"):
        record = json.loads(run.read_text())
        record["metrics"]["test_perplexity"] = 60 + record["seeds"][0]
        run.write_text(json.dumps(record))
    said = study(file, "--effect", "0.01").output
    assert "over 2 systems of the finished members of this" in said
    assert "3 seeds of each would find" in said


def test_a_typo_writes_no_plan(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax")
    for words in (["--only", "nosuch-1", "--at-most", "2"], ["--at-most", "9" * 20]):
        refusal(file, *words)
        assert not (folder_of(file) / "plan.json").exists()
    said = refusal(file, "--dry-run", "--all-tests")
    assert "--all-tests: changes nothing with --dry-run" in said


def test_damaged_plans_are_refused(file):
    plan = folder_of(file) / "plan.json"
    tables(file, "--at-most", "3")
    known = json.loads(plan.read_text())
    for wrong in ({"seeds": 5, "most": 2}, {"most": 3000000}, {"keys": [1]}, {"keys": {"a": 1}}):
        plan.write_text(json.dumps(known | wrong))
        assert "plan.json: damaged; restore it" in refusal(file)
