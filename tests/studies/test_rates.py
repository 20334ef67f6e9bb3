"""Test that a study tries rates first, takes the best one of each system, and says which."""

import json
import math

import pytest

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from highrank_plugins.studies.rates import NOT_TUNED, best_rate, rate_notes, trials_of, tuned
from tests.studies.stub import folder_of, refusal, starts, study, tables, write_stub

RATES = [0.3, 1, 3]
BEST = {"softmax": 0.3, "mos": 1, "mixtape": 3}  # as the stub has it


def members_of(file):
    exp_dir = (file.parent / "exp").resolve()
    read = read_study(file)
    trials = trials_of(read, exp_dir)
    members = prepare(tuned(read, trials), exp_dir)
    return trials, members, {one.member.system: one.settings.train["lr"] for one in members}


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
    for words in (["--table"], ["--only", "softmax-2"]):
        refusal(file, *words)
    assert study(file, "--only", "softmax_rate1-1").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rates": [1]}, "rates: expected two or more different numbers above 0"),
        ({"rates": [1, 1]}, "rates: expected two or more different numbers above 0"),
        ({"rates": [1, -3]}, "rates: expected two or more different numbers above 0"),
        ({"rates": RATES, "set": {"lr": "1,2"}}, "lr 1,2, of which there are no multiples"),
        ({"rates": RATES, "rates_set": {"lr": 5}}, "rates_set.lr: changes no trial; trials have"),
        ({"rates": RATES, "rates_set": {"seed": 5}}, "rates_set.seed: changes no trial; trials"),
        ({"rates_set": {"max_epoch": 5}}, "rates_set.max_epoch: changes no trial; give rates"),
    ],
)
def test_bad_rates_are_refused_before_a_run(tmp_path, changes, what):
    said = refusal(file := write_stub(tmp_path, **changes))
    assert what in said and len(said.splitlines()) == 1 and not starts(file)


def test_the_nearest_of_equal_rates_is_taken_and_one_rate_is_not_tuned():
    assert best_rate({0.1: 2.0, 1: 2.0, 3: 2.0}) == 1
    assert list(rate_notes({"softmax": {1: 2.0}}, "lr")) == [NOT_TUNED] == list(rate_notes({}, ""))
