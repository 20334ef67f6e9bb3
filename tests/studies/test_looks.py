"""A table with tests is a look: seeds that come, go or change after it leave no further test."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.studies.table import LATE
from tests.studies.stub import folder_of, study, table_of, write_stub, write_study

TWO = {name: {"conf": name} for name in ("softmax", "mos")}


@pytest.fixture
def file(tmp_path):
    """Return a study of two systems with three seeds, which has been tested."""
    found = write_stub(
        tmp_path, members=TWO, seeds=[1, 2, 3], baseline="softmax", metric="test_perplexity"
    )
    assert study(found).exit_code == 0 and is_tested(found)
    return found


def is_tested(file):
    return "p Holm" in table_of(file).decode()


def change(file, *words, **changes):
    tree = yaml.safe_load(file.read_text())
    write_study(file.parent, tree | changes)
    done = study(file, *words)
    assert done.exit_code in (0, 1), done.output
    return table_of(file).decode()


def compared(file):
    links = sorted(folder_of(file).glob("*-*/results.json"))
    words = ["compare", *map(str, links), "--metric", "test_perplexity", "--all-tests"]
    return CliRunner().invoke(app, words).output


def test_a_plan_after_a_tested_table_is_too_late(file):
    text = change(file, "--at-most", "4", seeds=[1, 2, 3, 4, 5])
    assert f"since {LATE}: softmax, mos." in text and "p Holm" not in text
    assert "p (Holm)" not in compared(file) and LATE in compared(file)


def test_each_configuration_has_its_first_look(file):
    assert "p Holm" in change(file, set={"lr": 2})  # another study
    assert "p Holm" not in change(file, set={"lr": 2}, seeds=[1, 2, 3, 4])
    assert "p Holm" not in change(file, set={}, seeds=[1, 2, 3, 4])
    members = TWO | {"mos": {"conf": "mos", "set": {"lr": 3}}}
    text = change(file, seeds=[1, 2, 3, 4], members=members)
    assert f"since {LATE}: softmax." in text and "p Holm" not in text


def test_systems_that_come_later_are_held_too_and_under_any_name(file):
    added = TWO | {"mixtape": {"conf": "mixtape"}}
    assert "p Holm" in change(file, members=added)
    other = added | {"mixtape": {"conf": "mixtape", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: mixtape." in change(file, members=other)
    renamed = {"softmax": {"conf": "softmax"}, "m2": {"conf": "mos", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: m2." in change(file, members=renamed)


@pytest.mark.parametrize("how", ["mos-2-code", "mos-2"])
def test_a_seed_without_a_result_holds_its_system(tmp_path, how):
    options = {"failing": how}
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", options=options)
    assert study(file).exit_code == 1
    text = table_of(file).decode()
    why = "a seed has no result" if how.endswith("code") else "a seed diverged"
    assert f"Not tested, since {why}" in text and "p Holm" in text  # of the third
    assert f"since {LATE}: softmax, mos, mixtape." in change(file, seeds=[1, 3])


def test_the_order_of_seeds_and_two_systems_of_one_configuration_change_nothing(file):
    assert "p Holm" in change(file, seeds=[3, 1, 2])
    again = TWO | {"softmax_again": {"conf": "softmax", "seeds": [4, 5, 6]}}
    assert f"since {LATE}: softmax, softmax_again." in change(file, members=again)
    fresh = {"members": again, "set": {"lr": 3}}
    assert "p Holm" in change(file, **fresh) and "p Holm" in change(file, "--table", **fresh)


def test_compare_does_not_add_the_seeds_of_two_studies(file):
    tree = yaml.safe_load(file.read_text())
    second = write_study(file.parent, tree | {"seeds": [4, 5, 6]}, "second")
    assert study(second).exit_code == 0
    links = [p for f in (file, second) for p in sorted(folder_of(f).glob("*-*/results.json"))]
    words = ["compare", *map(str, links), "--metric", "test_perplexity", "--all-tests"]
    found = CliRunner().invoke(app, words).output
    assert "since its runs are of several studies: " in found and "p (Holm)" not in found


def test_a_diverged_baseline_is_not_mended_by_leaving_out_its_seed(tmp_path):
    options = {"failing": "softmax-2"}
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax", options=options)
    assert study(file).exit_code == 1 and not is_tested(file)
    assert f"since {LATE}: " in change(file, seeds=[1, 3]) and not is_tested(file)


def test_compare_tests_what_the_study_tests(file):
    assert "p (Holm)" in compared(file)
    change(file, seeds=[1, 2, 3, 4])
    assert "p (Holm)" not in compared(file)
    links = sorted(folder_of(file).glob("*-[12]/results.json"))
    (folder_of(file) / "untested.json").write_text("{}")
    words = ["compare", *map(str, links), "--metric", "test_perplexity", "--all-tests"]
    found = CliRunner().invoke(app, words).output
    assert "since their study has 4 seeds of each: " in found and "p (Holm)" not in found
    for name in ("untested.json", "looks.json"):
        (folder_of(file) / name).write_text("[1]")
    assert "untested.json: damaged; restore it" in compared(file)
    assert "looks.json: damaged; restore it" in study(file, "--table").output


def test_finished_members_tell_an_effect(file):
    of_stub = "the seeds of all systems in the finished members of this study deviate as where some"
    done = study(file, "--effect", "0.01")
    assert done.exit_code == 2 and of_stub in done.output
    for run in folder_of(file).glob("*-*/results.json"):
        record = json.loads(run.read_text())
        record["metrics"]["test_perplexity"] = 60 + record["seeds"][0]
        run.write_text(json.dumps(record))
    done = study(file, "--effect", "0.01")
    assert done.exit_code == 0 and "over 2 systems of the finished members of this" in done.output
    assert "3 seeds of each would find" in done.output


def test_a_typo_writes_no_plan(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], baseline="softmax")
    for words in (["--only", "nosuch-1", "--at-most", "2"], ["--at-most", "9" * 20]):
        assert study(file, *words).exit_code == 2
        assert not (folder_of(file) / "plan.json").exists()
    done = study(file, "--dry-run", "--all-tests")
    assert done.exit_code == 2 and "--all-tests: changes nothing with --dry-run" in done.output


@pytest.mark.parametrize("name", ["metric", "baseline"])
def test_a_plan_states_metric_and_baseline(tmp_path, name):
    both = {"metric": "test_perplexity", "baseline": "softmax"}
    del both[name]
    file = write_stub(tmp_path, seeds=[1, 2], **both)
    done = study(file, "--register")
    assert done.exit_code == 2 and f"--register: no {name}, which a plan states" in done.output


def test_fewer_seeds_than_registered_are_named(tmp_path):
    of = {"metric": "test_perplexity", "baseline": "softmax", "members": TWO}
    file = write_stub(tmp_path, seeds=[1, 2, 3], **of)
    assert study(file, "--register").exit_code == 0
    text = change(file, seeds=[1, 2])
    assert "softmax has seeds 1, 2 (planned: 1, 2, 3)" in text and "As registered" not in text
