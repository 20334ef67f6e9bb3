"""`highrank doctor --numbers`: equal where nothing changed, and the place where something did."""

import json
import math
from copy import deepcopy

import pytest

from highrank_plugins.cli import numbers
from highrank_plugins.common.files import read_json
from highrank_plugins.studies.members import NUMERICS_VERSION
from tests.cli import highrank, refused
from tests.fairseq_cli import attempt

KNOWN = read_json(numbers.REFERENCE)
KIND, RUNS = next(iter(KNOWN["kinds"].items()))
RENEW = (
    "numbers of training runs have changed: raise NUMERICS_VERSION in studies/members.py if they "
    "should, and run `highrank doctor --numbers --output highrank_plugins/cli/numbers.json`"
)


@pytest.fixture
def machine(monkeypatch):
    """Return the runs of a machine whose kind is known, to change them; count their repetitions."""
    runs = deepcopy(RUNS)
    monkeypatch.setattr(numbers, "this_kind", lambda: KIND)
    monkeypatch.setattr(numbers, "repeat", lambda: runs)
    return runs


def doctor(*words):
    return highrank("doctor", "--numbers", *words)


def change(runs, title, name, update, text):
    """Replace what a run has of a tensor after an update, counted from 1."""
    (full,) = [one for one in runs if one.startswith(title)]
    digests = runs[full][name].split()
    digests[update - 1] = text
    runs[full][name] = " ".join(digests)


def test_the_reference_is_of_this_version_and_has_every_run():
    assert KNOWN["numerics"] == NUMERICS_VERSION, RENEW
    for kind, runs in KNOWN["kinds"].items():
        assert [title.partition(",")[0] for title in runs] == list(numbers.TRAININGS), kind
        for run in runs.values():
            assert next(iter(run)) == "loss" and len(run) > 10
            assert all(len(text.split()) == numbers.UPDATES for text in run.values())
            losses = [float(one.partition(":")[2]) for one in run["loss"].split()]
            assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


def test_a_run_computes_what_the_reference_says(monkeypatch):
    title = "transformer_mixtape_tiny --head-loss fused"
    monkeypatch.setattr(numbers, "TRAININGS", {title: numbers.TRAININGS[title]})
    found = numbers.repeat()
    expected = KNOWN["kinds"].get(numbers.this_kind())
    assert found[title].keys() == RUNS[title].keys(), RENEW
    assert expected is None or not numbers.first_difference(found[title], expected[title]), RENEW


@pytest.mark.long
@pytest.mark.cpp
def test_this_installation_computes_what_the_reference_says():
    done = attempt("highrank", "doctor", "--numbers")
    assert done.code == 0, f"{RENEW}\n{done.output}"
    if "no reference: " in done.output:
        pytest.skip(done.output.splitlines()[0])
    assert "This installation computes what ours did: " in done.output
    assert done.output.count(": equal\n") >= 4


def test_equal_numbers_and_an_unknown_kind_have_exit_code_0(machine, monkeypatch):
    done = doctor()
    assert done.exit_code == 0
    *runs, last = done.stdout.splitlines()
    assert len(runs) == 5 and all(line.endswith(": equal") for line in runs)
    assert last.endswith(f"5 of 5 training runs are equal bit for bit, on {KIND}")
    (title,) = [title for title in machine if "cpp" in title]
    machine["transformer_lm_sigsoftmax --head-loss cpp, clang 99"] = machine.pop(title)
    done = doctor()
    assert done.exit_code == 0
    assert "--head-loss cpp, clang 99: no reference" in done.stdout
    assert "4 of 5 training runs are equal" in done.stdout
    monkeypatch.setattr(numbers, "this_kind", lambda: "an abacus")
    done = doctor()
    assert done.exit_code == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("no reference: ") and "an abacus" in first and KIND in first
    assert second.endswith("highrank doctor --numbers --output FILE")


def test_the_first_update_tensor_and_digit_are_named(machine):
    name = [*next(run for title, run in RUNS.items() if "mos" in title)][2]
    norm = RUNS["awd_lstm_lm_mos --head-loss fused"][name].split()[2].partition(":")[2]
    other = float(norm) * (1 + 2e-6)
    change(machine, "awd_lstm_lm_mos", name, 3, f"00000000:{other!r}")
    change(machine, "awd_lstm_lm_mos", "loss", 4, "00000000:1.0")
    run = machine["lstm_softmax --head-loss reference"]
    run["new"] = run.pop("encoder.embed_tokens.weight")
    done = doctor()
    assert done.exit_code == 1
    tensors, line = [line for line in done.stdout.splitlines() if "DIFFERS" in line]
    assert tensors.endswith("DIFFERS at names of tensors: encoder.embed_tokens.weight, new")
    place = f"awd_lstm_lm_mos --head-loss fused: DIFFERS at update 3, norm of {name}, digit "
    assert line.startswith(place) and f"{other!r} here, {norm} in ours" in line
    assert 5 <= int(line.removeprefix(place).partition(":")[0]) <= 7
    assert "other numbers than ours did: 3 of 5 training runs" in done.stdout
    for here, ours, digit in (
        (5.743738, 5.743739, 7), (1.2, 1.3, 2), (2.0, 1.0, 1), (1.0, 1.0, 18),  # digests differ
        (math.nan, 1.0, 1), (1.0, 0.0, 1), (0.00123, 0.00124, 3),
    ):  # fmt: skip
        assert numbers.first_digit(here, ours) == digit


def test_numbers_are_added_to_their_file_alone_and_old_ones_dropped(machine, monkeypatch, tmp_path):
    file = tmp_path / "numbers.json"
    assert doctor("--output", file).exit_code == 0
    monkeypatch.setattr(numbers, "this_kind", lambda: "another")
    assert doctor("--output", file).exit_code == 0
    assert json.loads(file.read_text()) == {
        "numerics": NUMERICS_VERSION, "kinds": {KIND: machine, "another": machine},
    }  # fmt: skip
    file.write_text(json.dumps({"numerics": NUMERICS_VERSION - 1, "kinds": {KIND: {}}}))
    doctor("--output", file)
    assert list(json.loads(file.read_text())["kinds"]) == ["another"]
    file = tmp_path / "record.json"
    for text in ('{"metrics": 1}', "[]"):
        file.write_text(text)
        said = f"highrank: {file}: not written by `highrank doctor"
        refused(said, "doctor", "--numbers", "--output", file)
        assert file.read_text() == text


def test_a_run_that_fails_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"fairseq-preprocess failed .*; `highrank doctor` says"):
        numbers._run(tmp_path, "preprocess", "--trainpref nothing")
