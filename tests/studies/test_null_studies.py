"""Simulate studies without a difference, from records to the sentence about what can be claimed."""

import json
from functools import partial

import numpy as np
import pytest

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare, study_folder
from highrank_plugins.studies.plan import most_seeds
from highrank_plugins.studies.table import write_tables
from tests.results.entries import record_of
from tests.studies.stub import write_stub

LOOKS = (3, 4)  # all that the plan allows


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
    """Return the shares of studies that err: in one look, in its places, and in any of LOOKS."""
    seeds = [*range(1, LOOKS[-1] + 1)]
    study = read_study(write_stub(tmp_path, seeds=seeds, baseline="softmax"))
    members = prepare(study, tmp_path / "exp")
    folder = study_folder(study, tmp_path / "exp")
    folder.mkdir(parents=True)
    for one in members:
        one.run_dir.mkdir(parents=True)
        one.note("done").touch()
    rng = np.random.default_rng(drawn)
    plan = {"seeds": LOOKS[0], "most": most_seeds(members), "keys": {}}
    found = np.zeros(3)
    for _ in range(studies):
        for one, value in zip(members, rng.normal(80, 0.2, len(members)), strict=True):
            seed, signed = one.seed, {"test_perplexity": "a"}
            record = record_of({"test_perplexity": value}, seed, signatures=signed)
            record["config"] = {"train": {"arch": one.system, "seed": seed}}
            one.record.write_text(json.dumps(record))
        look = partial(looked, study, members, folder)
        fixed = look(LOOKS[0], plan | {"most": LOOKS[0]})
        found += [*fixed, any(look(seeds, plan)[0] for seeds in LOOKS)]
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
