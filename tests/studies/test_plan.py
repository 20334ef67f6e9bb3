"""A study is held to its plan, and to its first table with tests, which has spent all of alpha."""

import json
from functools import partial
from math import log, log2, sqrt
from statistics import mean, variance

import numpy as np
import pytest

from highrank_plugins.analysis.statistics import seeds_needed, smallest_effect
from highrank_plugins.common.provenance import hardware
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare, study_folder
from highrank_plugins.studies.table import LATE, write_tables
from tests.results.entries import record_of
from tests.studies.stub import compared, folder_of, refusal, starts, study, tables, write_stub

TWO = {name: {"conf": name} for name in ("softmax", "mos")}
BOTH = {"baseline": "softmax", "metric": "test_perplexity"}  # what a plan states


def test_tests_wait_for_the_seeds_that_were_planned(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], **BOTH)
    file.write_text("# Which layer?\n" + file.read_text())
    assert study(file, "--register", "--at-most", "3").exit_code == 0
    plan = json.loads((folder_of(file) / "plan.json").read_text())
    assert (plan["seeds"], plan["most"], len(plan["keys"])) == (3, 4, 12)
    assert plan["question"] == "Which layer?" and not starts(file)
    for name in ("softmax-1", "mos-1", "mixtape-1"):
        assert study(file, "--only", name).exit_code == 0
    text = tables(file, "--table")
    assert "not all of the planned seeds (3 of each system or more) are done" in text
    assert "**" not in text and "p Holm" not in text and "place" not in text
    text = tables(file)  # the plan is kept
    assert "p Holm" in text and "p (Holm)" not in text and len(starts(file)) == 9
    looks = "t-test, made sequential for looks at 3 to 4 seeds, of all 3 pairs"
    assert looks in text and "(Holm); intervals are not, but hold at every look." in text
    text = tables(file, "--at-most", "4")
    assert looks in text and "As registered" in text and len(starts(file)) == 12
    assert "not all of the planned seeds" in tables(file, "--table", "--at-most", "2")
    said = refusal(file, "--at-most", "5")
    assert "--at-most 5: " in said and "lists 4 seeds; list more" in said
    text = tables(file, "--at-most", "5", seeds=[1, 2, 3, 4, 5])  # without the question
    assert "Beyond the plan: it had 4 seeds of each system at most." in text
    assert "was registered: question, softmax-5 is new, " in text and "As registered" not in text
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text


def test_a_study_is_held_to_its_registered_plan(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], members=TWO, **BOTH)
    said = refusal(file, "--register", "--effect", "0.01")
    assert "give --like FOLDER of a study like it" in said
    assert study(file, "--register").exit_code == 0
    plan = folder_of(file) / "plan.json"
    assert json.loads(plan.read_text())["seeds"] == 3 and not starts(file)
    short = json.loads(plan.read_text())["sha256"][:12]
    assert f"As registered, plan {short}." in tables(file)
    assert "has a plan already" in refusal(file, "--register")
    more = "the plan has 3 of the 4 seeds; --at-most 4 takes all"
    for names, seeds, said in (
        (
            "softmax mos",
            [2, 3, 4],
            "softmax-4 is new, mos-4 is new, softmax-1 is missing, mos-1 is missing.",
        ),
        ("softmax", [1, 2, 3], ": mos-1 is missing, mos-2 is missing, mos-3 is missing."),
        (
            "softmax mos mixtape",
            [1, 2, 3],
            "registered: mixtape-1 is new, mixtape-2 is new, mixtape-3 is new.",
        ),
        ("softmax mos", {"mos": [1, 2]}, ": mos-3 is missing."),
        ("softmax mos", {"softmax": [1, 2]}, ": softmax-3 is missing."),
        ("softmax mos", [1, 2, 3, 4], "As registered"),
    ):
        listed = {name: {"conf": name} for name in names.split()}
        if isinstance(seeds, dict):  # of one system alone
            listed = {name: {**of, "seeds": seeds.get(name)} for name, of in listed.items()}
            seeds = [1, 2, 3]
        text = tables(file, seeds=seeds, members=listed)
        assert said in text and ("As registered" in text) == ("As" in said)
        assert ("p Holm" in text) == ("egistered" in said), said
        assert (more in study(file, "--table").output) == (len(seeds) > 3)
    text = tables(file, "--at-most", "4")
    assert "Beyond the plan: it had 3 seeds" in text and "As registered" not in text
    plan.write_text(plan.read_text().replace("softmax-1", "softmax-9"))
    assert "plan.json: changed after it was registered" in refusal(file, "--table")


def test_the_first_look_keeps_metric_seeds_and_members(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], **BOTH)
    text = tables(file, "--at-most", "2")
    assert "p Holm" in text and "registered" not in text and "Changed" not in text
    said = "Changed since the plan of the first look: metric."
    assert said in tables(file, metric="valid_perplexity")
    text = tables(file, seeds=[5, 6, 7, 8], metric="test_perplexity")
    assert "mos-5 is new, mos-6 is new, " in text and "mos-1 is missing, mos-2 is missing" in text
    assert f"since {LATE}: " in text and "p Holm" not in text
    plan = folder_of(file) / "plan.json"
    known = json.loads(plan.read_text())
    for wrong in ({"seeds": 5, "most": 2}, {"keys": [1]}, {"keys": {"a": 1}}):
        plan.write_text(json.dumps(known | wrong))
        assert "plan.json: damaged; restore it" in refusal(file)


@pytest.mark.parametrize(
    ("first", "words", "changes", "why"),
    [
        ("", "--register", {"seeds": [1]}, "--register: one seed of each system; list two"),
        ("", "--register", {"metric": None}, "--register: no metric, which a plan states"),
        ("mos-2", "--register", {}, "--register: mos-2 has been run"),
        ("mos_rate3-1", "--register", {"rates": [1, 3]}, "--register: mos_rate3-1 has been run"),
        ("", "--effect 1 --all-tests", {}, "changes nothing with --effect"),
        ("", "--like records", {}, "--like: tells --effect"),
        ("", "--only nosuch-1 --at-most 2", {}, "--only nosuch-1: no such member; the members"),
        ("", "--only mos-1 --table", {}, "--only and --table exclude each other"),
    ],
)
def test_plans_that_cannot_be_made_and_ways_that_exclude_each_other_are_refused(
    tmp_path, first, words, changes, why
):
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
            found = {"test_perplexity": value, "test_bits": log2(value)}
            record = record_of(found, seed, signature="a")
            record["config"] = {"train": {"arch": name}}
            record["train"] = {"wall_seconds": 1800}
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
    tables(file)
    of_stub = "the seeds of all systems in the finished members of this study deviate as where some"
    assert of_stub in refusal(file, "--effect", "0.01")
    said = refusal(file, "--effect", "0.01", set={"lr": 7})
    assert "no records in the finished members of this study" in said, "links are of other members"


def test_a_seed_runs_on_one_kind_of_machine(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2], baseline="softmax")
    assert study(file, "--only", "softmax-1").exit_code == 0
    (record,) = tmp_path.rglob("members/*/results.json")
    found = json.loads(record.read_text())
    here = {name: value for name, value in hardware().items() if name != "memory_gib"}
    record.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
    said = refusal(file)
    assert "softmax-1 ran on" in said and "family other" in said and len(starts(file)) == 1
    assert "softmax-1 ran on" in refusal(file, "--only", "mos-1")
    assert study(file, "--only", "mos-2").exit_code == 0, "of this seed nothing ran elsewhere"
    record.write_text(json.dumps(found | {"hardware": here}))
    tables(file)
    paths = [path for path in tmp_path.rglob("members/*/results.json") if path != record]
    other = next(path for path in paths if json.loads(path.read_text())["seeds"] == [1])
    there = {"hardware": here | {"family": "other"}}
    other.write_text(json.dumps(json.loads(other.read_text()) | there))
    assert "Systems were not run on one kind of processor" in tables(file, "--table")


FOUR = [1, 2, 3, 4]
MIXTAPE = {"conf": "mixtape"}
AGAIN = TWO | {"softmax_again": {"conf": "softmax", "seeds": [4, 5, 6]}}
# what changes after the first table, and the systems that then have no test
LOOKS = [
    ({"seeds": [3, 1, 2]}, ""),
    ({"seeds": [4, 5, 6]}, "softmax, mos"),
    ({"seeds": [1, 2]}, "softmax, mos"),
    ({"seeds": FOUR}, "softmax, mos"),
    ({"seeds": FOUR, "members": TWO | {"mos": {"conf": "mos", "set": {"lr": 9}}}}, "softmax"),
    ({"members": TWO | {"mixtape": MIXTAPE}}, ""),  # is held from now on
    ({"members": TWO | {"mixtape": MIXTAPE | {"seeds": [4, 5, 6]}}}, "mixtape"),
    ({"members": {"softmax": TWO["softmax"], "m2": {"conf": "mos", "seeds": [4, 5]}}}, "m2"),
    ({"members": AGAIN}, "softmax, softmax_again"),
    ({"set": {"lr": 2}}, ""),  # another study
    ({"set": {"lr": 3}, "members": AGAIN}, ""),
]


def test_each_configuration_is_held_to_its_first_table(tmp_path):
    """The first look spent all of alpha; other systems, and a new study, may be added."""
    first = {"seeds": [1, 2, 3], "members": TWO, "set": {}}
    file = write_stub(tmp_path, baseline="softmax", **first)
    for name in ("softmax-1", "softmax-2", "mos-1", "mos-2"):
        assert study(file, "--only", name).exit_code == 0
    # no look, since nothing is tested
    assert "Not tested, since not all seeds are done: softmax, mos." in tables(file, "--table")
    assert "Student's unpaired two-sided t-test of the pair" in tables(file)
    for changes, late in LOOKS:
        text = tables(file, **BOTH | first | changes)
        assert (f"since {LATE}: {late}." in text) == bool(late), changes
        assert ("p Holm" in text) == (late in ("", "mixtape")), changes
    assert "p Holm" in tables(file, "--table")
    text = tables(file, "--at-most", "4", **first | {"seeds": [1, 2, 3, 4, 5]})
    assert f"since {LATE}: softmax, mos." in text and "p Holm" not in text, "a plan is too late"
    assert "p (Holm)" not in compared(file) and LATE in compared(file)


def test_compare_tests_what_the_study_tests(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3], members=TWO, **BOTH)
    tables(file)
    assert "p (Holm)" in compared(file)
    tables(file, seeds=FOUR)
    assert "p (Holm)" not in compared(file)
    for name in ("untested.json", "looks.json"):
        (folder_of(file) / name).write_text("[1]")
    assert "untested.json: damaged; run the study with --table" in compared(file)
    assert "looks.json: damaged; restore it" in refusal(file, "--table")
    (folder_of(file) / "looks.json").unlink()
    text = tables(file, "--at-most", "3")  # as of a study that may have several looks
    found = compared(file)
    assert "p Holm" in text and "since seeds may be added to their study" in found
    assert "p (Holm)" not in found and "**" not in found
    plan = folder_of(file) / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"most": 3}))
    tables(file, "--table")
    assert "p (Holm)" in compared(file)


TWO_LOOKS = (3, 4)  # all that the plan allows


def claims(text):
    sentence = text.rpartition("What can be claimed")[2]
    assert "softmax" in sentence, text
    return "better than" in sentence or "worse than" in sentence


def looked(study, members, folder, seeds, plan):
    """Return whether the table of the first seeds claims a difference, and whether a place does."""
    own = [one for one in members if one.seed <= seeds]
    tables = write_tables(study, own, folder, plan)
    text = (folder / "table.md").read_text()
    assert ("sequential" in text) == (plan["most"] > plan["seeds"])
    return claims(text), any(row[1].text != "1–3" for row in tables[0].rows)


def errors(tmp_path, studies, drawn):
    """Return the shares of studies that err: in a look, in its places, in any look."""
    seeds = [*range(1, TWO_LOOKS[-1] + 1)]
    study = read_study(write_stub(tmp_path, seeds=seeds, baseline="softmax"))
    members = prepare(study, tmp_path / "exp")
    folder = study_folder(study, tmp_path / "exp")
    folder.mkdir(parents=True)
    for one in members:
        one.run_dir.mkdir(parents=True)
        one.note("done").touch()
    rng = np.random.default_rng(drawn)
    plan = {"seeds": TWO_LOOKS[0], "most": TWO_LOOKS[-1]}
    plan["keys"] = {one.name: one.plan_key for one in members}
    found = np.zeros(3)
    for _ in range(studies):
        for one, value in zip(members, rng.normal(80, 0.2, len(members)), strict=True):
            seed, signed = one.seed, {"test_perplexity": "a"}
            record = record_of({"test_perplexity": value}, seed, signatures=signed)
            record["config"] = {"train": {"arch": one.system, "seed": seed}}
            one.record.write_text(json.dumps(record))
        look = partial(looked, study, members, folder)
        fixed = look(TWO_LOOKS[0], plan | {"most": TWO_LOOKS[0]})
        found += [*fixed, any(look(seeds, plan)[0] for seeds in TWO_LOOKS)]
    return found / studies


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("studies", "margin"), [(100, 0.06), pytest.param(10_000, 0.01, marks=pytest.mark.long)]
)
def test_a_study_without_a_difference_claims_one_in_a_twentieth(
    tmp_path, monkeypatch, studies, margin
):
    monkeypatch.setattr("os.fsync", lambda file: None)  # a disk would take most of the time
    assert errors(tmp_path, studies, drawn=3) == pytest.approx([0.05] * 3, abs=margin)
