"""Test the plan of a study, its machines, and studies that are too large."""

import fcntl
import json

import pytest

from highrank_plugins.common.folders import held_alone
from highrank_plugins.common.provenance import hardware
from highrank_plugins.common.yaml_tree import ConfigurationError, read_tree
from highrank_plugins.studies.definition import read_study
from tests.studies.stub import folder_of, starts, study, table_of, write_stub, write_study


def test_tests_wait_for_the_seeds_that_were_planned(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2, 3, 4], baseline="softmax")
    for name in ("softmax-1", "mos-1", "mixtape-1"):
        assert study(file, "--only", name, "--at-most", "3").exit_code == 0
    assert study(file, "--table").exit_code == 0
    text = table_of(file).decode()
    assert "not all of the planned seeds (at most 3 of each system) are done" in text
    assert "**" not in text and "p (Holm)" not in text
    assert study(file).exit_code == 0  # the plan is kept
    text = table_of(file).decode()
    assert "p (Holm)" in text and len(starts(file)) == 9 and "Beyond the plan" not in text
    assert study(file, "--at-most", "4").exit_code == 0 and len(starts(file)) == 12
    assert "Beyond the plan: it had 3 seeds of each system at most." in table_of(file).decode()
    (folder_of(file) / "plan.json").write_text("[]")
    done = study(file)
    assert done.exit_code == 2 and "plan.json: not a number of seeds" in done.output


def test_a_seed_runs_on_one_kind_of_machine(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2], baseline="softmax")
    assert study(file, "--only", "softmax-1").exit_code == 0
    (record,) = tmp_path.rglob("members/*/results.json")
    found = json.loads(record.read_text())
    here = {name: value for name, value in hardware().items() if name != "memory_gib"}
    record.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
    done = study(file)
    assert (
        done.exit_code == 2 and "softmax-1 ran on" in done.output and "family other" in done.output
    )
    assert len(starts(file)) == 1
    record.write_text(json.dumps(found | {"hardware": here}))
    assert study(file).exit_code == 0
    other = next(path for path in tmp_path.rglob("members/*/results.json") if path != record)
    found = json.loads(other.read_text())
    seed = found["seeds"][0]
    if seed == 1:
        other.write_text(json.dumps(found | {"hardware": here | {"family": "other"}}))
        assert study(file, "--table").exit_code == 0
        assert "machines of several kinds ran seed 1" in table_of(file).decode()


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
        with held_alone(lock, "busy") as file:
            assert file.fileno() and lock.stat().st_mode & 0o007 == 0
