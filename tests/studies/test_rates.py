"""Test that a study tries rates first, takes the best one of each system, and says which."""

import json
import math

import pytest
import yaml

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from highrank_plugins.studies.rates import NOT_TUNED, best_rate, rate_notes, trials_of, tuned
from tests.studies.stub import folder_of, starts, study, table_of, write_stub, write_study

RATES = [0.3, 1, 3]
BEST = {"softmax": 0.3, "mos": 1, "mixtape": 3}  # as the stub has it


def members_of(file, folder="exp"):
    exp_dir = (file.parent / folder).resolve()
    read = read_study(file)
    trials = trials_of(read, exp_dir)
    return read, trials, prepare(tuned(read, trials), exp_dir)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rates": RATES, "rates_set": {"lr": 5}}, "rates_set.lr: changes no trial; trials have"),
        ({"rates": RATES, "rates_set": {"seed": 5}}, "rates_set.seed: changes no trial; trials"),
        ({"rates_set": {"max_epoch": 5}}, "rates_set.max_epoch: changes no trial; give rates"),
    ],
)
def test_what_changes_no_trial_is_refused(tmp_path, changes, why):
    file = write_stub(tmp_path, seeds=[1, 2], **changes)
    done = study(file)
    assert done.exit_code == 2 and why in done.output and len(done.output.splitlines()) == 1


def test_each_system_gets_the_best_of_its_trials_for_all_seeds(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[4, 5, 6], baseline="softmax")
    assert study(file).exit_code == 0
    read, trials, members = members_of(file)
    assert {m.member.system: m.settings.train["lr"] for m in members} == BEST
    names = [f"{name}_rate{rate:g}-4" for name in BEST for rate in RATES]
    assert [one.name for one in trials] == names
    # a trial at the best rate is the first seed of its system: it is trained once
    assert len(starts(file)) == 3 * 3 + 3 * 2 and {*starts(file).values()} == {1}
    text = table_of(file).decode()
    # the stub's losses are squares, in bits
    mean = sum(math.log(rate) ** 2 for rate in (0.3, 3)) * math.log(2) / 3
    assert f"mos 1 ({mean:.3f})" in text and NOT_TUNED not in text
    assert "softmax 0.3 (" in text and "mixtape 3 (" in text
    assert "wider ones may help: softmax, mixtape." in text
    assert not list(folder_of(file).glob("*_rate*")), "trials are no systems of the table"
    done = study(file)
    assert done.exit_code == 0 and {*starts(file).values()} == {1} and read.rates == {}


def test_short_trials_are_runs_of_their_own(tmp_path):
    file = write_stub(tmp_path, rates=RATES, rates_set={"max_epoch": 2}, seeds=[1, 2])
    assert study(file).exit_code == 0
    _, trials, members = members_of(file)
    assert {one.settings.train["max_epoch"] for one in trials} == {2}
    assert {one.settings.train["max_epoch"] for one in members} == {36}
    assert len(starts(file)) == 9 + 6 and not {t.key for t in trials} & {m.key for m in members}


def test_a_rate_that_diverges_is_not_taken_and_is_named(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2], options={"failing": "mixtape-1-lr3.0"})
    assert study(file).exit_code == 0
    _, _, members = members_of(file)
    assert {m.settings.train["lr"] for m in members if m.member.system == "mixtape"} == {1}
    assert "diverged at 3)" in table_of(file).decode()


def test_a_failed_trial_stops_before_any_seed(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2], options={"failing": "mos-1-code"})
    done = study(file)
    assert done.exit_code == 2 and "mos_rate0.3-1: failed with exit code 3; rates" in done.output
    assert "3 of 9 are not; run the study" in done.output and len(starts(file)) == 9
    for words in (["--table"], ["--only", "softmax-2"]):
        assert study(file, *words).exit_code == 2
    assert study(file, "--only", "softmax_rate1-1").exit_code == 0


def test_a_dry_run_lists_the_trials_first_and_then_the_members_at_their_rates(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2])
    done = study(file, "--dry-run")
    assert "9 trials of learning rates come first" in done.output and not starts(file)
    assert "mos_rate0.3-1" in done.output and "--set=lr=0.3" in done.output
    assert "9 of 9 members to run" in done.output
    assert study(file).exit_code == 0
    done = study(file, "--dry-run")
    assert "0 of 6 members to run" in done.output and "# mixtape-2" in done.output


def test_a_plan_with_rates_is_kept_and_a_change_of_them_is_named(tmp_path):
    file = write_stub(
        tmp_path, rates=RATES, seeds=[1, 2], baseline="softmax", metric="test_perplexity"
    )
    assert study(file, "--register").exit_code == 0
    assert study(file).exit_code == 0
    assert "As registered, plan" in table_of(file).decode()
    tree = yaml.safe_load(file.read_text())
    for changes in ({"rates": [1, 3]}, {"rates": RATES, "rates_set": {"max_epoch": 3}}):
        write_study(tmp_path, tree | changes)
        assert study(file).exit_code == 0
        assert f"was registered: {[*changes][-1]}." in table_of(file).decode()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rates": [1]}, "rates: expected two or more different numbers above 0"),
        ({"rates": [1, 1]}, "rates: expected two or more different numbers above 0"),
        ({"rates": [1, -3]}, "rates: expected two or more different numbers above 0"),
        ({"rates": RATES, "set": {"lr": "1,2"}}, "lr 1,2, of which there are no multiples"),
    ],
)
def test_bad_rates_are_refused_before_a_run(tmp_path, changes, what):
    file = write_stub(tmp_path, **changes)
    done = study(file)
    assert done.exit_code == 2 and what in done.output.replace("\n", " ") and not starts(file)


def test_a_record_without_a_validation_loss_is_refused(tmp_path):
    file = write_stub(tmp_path, rates=RATES, seeds=[1, 2])
    assert study(file).exit_code == 0
    record = members_of(file)[1][0].record
    content = json.loads(record.read_text())
    del content["train"]["best_valid_loss"]
    record.write_text(json.dumps(content))
    done = study(file, "--table")
    assert done.exit_code == 2 and "no validation loss, by which `rates` chooses" in done.output


def test_the_nearest_of_equal_rates_is_taken_and_one_rate_is_not_tuned():
    assert best_rate({0.1: 2.0, 1: 2.0, 3: 2.0}) == 1
    assert list(rate_notes({"softmax": {1: 2.0}}, "lr")) == [NOT_TUNED] == list(rate_notes({}, ""))
