"""Test studies/table.py: the links to members, and what a table says without a baseline."""

import json

import yaml

from tests.studies.stub import (
    compared,
    folder_of,
    refusal,
    study,
    tables,
    write_stub,
    write_study,
)


def test_a_baseline_that_fails_is_named(tmp_path):
    failing = {"failing": "softmax-1-code"}
    text = tables(write_stub(tmp_path, seeds=[1], options=failing, baseline="softmax"), code=1)
    assert "Nothing is tested, because the baseline softmax has no result." in text
    assert "--baseline" not in text


def test_the_log_of_a_member_that_another_study_ran_is_named(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-nan"})
    study(file)
    settings = yaml.safe_load(file.read_text())
    other = write_study(tmp_path, settings | {"members": {"mixed": {"conf": "mos"}}}, "other")
    start = "mixed-1: diverged (NaN); log: ../../members/"
    (line,) = [one for one in tables(other, code=1).splitlines() if one.startswith(start)]
    log = folder_of(other) / line.rpartition("log: ")[2].removesuffix(".")
    assert log.name == "train.log" and log.is_file()


def test_links_to_members_that_the_study_no_longer_has_are_removed(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    study(file)
    folder = folder_of(file)
    (folder / "mine-1").symlink_to(tmp_path)
    tables(file, members={"mos": {"conf": "mos", "set": {"lr": 2}}}, seeds=[1])
    links = {path.name for path in folder.iterdir() if path.is_symlink()}
    assert links == {"mos-1", "mine-1"}
    assert json.loads((folder / "mos-1/results.json").read_text())["config"]["train"]["lr"] == 2


def test_a_file_in_the_place_of_a_link_is_kept(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    folder = folder_of(file)
    folder.mkdir(parents=True)
    (folder / "mos-1").write_text("mine")
    assert "mos-1: in the place of the link to a member" in refusal(file)
    assert (folder / "mos-1").read_text() == "mine"


def test_compare_names_systems_without_any_record(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-code"})
    study(file)
    assert "mos-1 has no record: failed with exit" in compared([file])
