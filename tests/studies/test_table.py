"""Test studies/table.py: the links to members, and what a table says without a baseline."""

import json

import yaml
from typer.testing import CliRunner

from highrank_plugins.cli import app
from tests.studies.stub import folder_of, study, table_of, write_stub, write_study


def test_a_baseline_that_fails_is_named(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "softmax-1-code"})
    write_study(tmp_path, {**yaml.safe_load(file.read_text()), "baseline": "softmax"})
    assert study(file).exit_code == 1
    text = table_of(file).decode()
    assert "Nothing is tested, because the baseline softmax has no result." in text
    assert "--baseline" not in text


def test_the_log_of_a_member_that_another_study_ran_is_named(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-nan"})
    study(file)
    settings = yaml.safe_load(file.read_text())
    other = write_study(tmp_path, settings | {"members": {"mixed": {"conf": "mos"}}}, "other")
    assert study(other).exit_code == 1
    lines = table_of(other).decode().splitlines()
    start = "mixed-1: diverged (NaN); log: ../../members/"
    (line,) = [one for one in lines if one.startswith(start)]
    log = folder_of(other) / line.rpartition("log: ")[2].removesuffix(".")
    assert log.name == "train.log" and log.is_file()


def test_links_to_members_that_the_study_no_longer_has_are_removed(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    study(file)
    write_study(tmp_path, {"members": {"mos": {"conf": "mos", "set": {"lr": 2}}}, "seeds": [1]})
    folder = folder_of(file)
    (folder / "mine-1").symlink_to(tmp_path)
    assert study(file).exit_code == 0
    links = {path.name for path in folder.iterdir() if path.is_symlink()}
    assert links == {"mos-1", "mine-1"}
    assert json.loads((folder / "mos-1/results.json").read_text())["config"]["train"]["lr"] == 2


def test_a_file_in_the_place_of_a_link_is_kept(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    folder = folder_of(file)
    folder.mkdir(parents=True)
    (folder / "mos-1").write_text("mine")
    done = study(file)
    assert done.exit_code == 2 and "mos-1: in the place of the link to a member" in done.output
    assert (folder / "mos-1").read_text() == "mine"


def test_compare_names_systems_without_any_record(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-code"})
    study(file)
    records = sorted(map(str, folder_of(file).glob("*/results.json")))
    compared = CliRunner().invoke(app, ["compare", *records])
    assert compared.exit_code == 0 and "mos-1 has no record: failed with exit" in compared.output
