"""Test the keys of studies/members.py: what changes the address of a member, and what does not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.studies import members
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import files_digest, prepare
from tests.studies.stub import write_stub, write_study

MEMBERS = {"members": {"mos": {"conf": "mos"}}, "seeds": [1]}


def key_of(folder, **changes):
    files_digest.cache_clear()
    (member,) = prepare(read_study(write_study(folder, MEMBERS | changes)), folder / "exp")
    return member.key


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a b\n")
    return tmp_path


def test_everything_that_numbers_depend_on_changes_the_key(folder, monkeypatch):
    data = {"options": {"data": "text"}}
    keys = [key_of(folder), key_of(folder, set={"lr": 2}), key_of(folder, seeds=[2])]
    keys += [key_of(folder, options={"scale": "small"}), key_of(folder, **data)]
    keys.append(key_of(folder, threads=2))
    (folder / "text" / "train.txt").write_text("a c\n")
    keys.append(key_of(folder, **data))
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "true\n")
    keys.append(key_of(folder))
    for name in ("corpus.yaml", "corpus_small.yaml"):  # say which files of the data are read
        (folder / "stub" / name).write_text("texts: {}\n")
        keys.append(key_of(folder, **data))
    monkeypatch.setattr(members, "NUMERICS_VERSION", members.NUMERICS_VERSION + 1)
    keys.append(key_of(folder))
    monkeypatch.setattr(members, "version", lambda package: f"{package} of tomorrow")
    keys.append(key_of(folder))
    assert len({*keys}) == len(keys)


def test_names_places_and_comments_do_not_change_the_key(folder):
    key = key_of(folder, options={"data": "text"})
    (folder / "text").rename(folder / "moved")
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "# more words\n")
    renamed = {"members": {"other": {"conf": "mos", "set": {"lr": 1}}}}
    assert key_of(folder, options={"data": "moved"}, baseline="other", **renamed) == key


def test_a_changed_recipe_of_the_repository_keeps_the_key(folder, monkeypatch):
    monkeypatch.setattr(members, "RECIPES", folder)
    key = key_of(folder)
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "true\n")
    assert key_of(folder) == key


def test_a_changed_module_keeps_the_keys_and_code_of_the_user_does_not(folder):
    own = folder / "own"
    (own / "__pycache__").mkdir(parents=True)
    (own / "layer.py").write_text("X = 1\n")
    file = write_study(folder, MEMBERS | {"set": {"user_dir": str(own)}})
    package = folder / "changed" / "highrank_plugins"
    shutil.copytree(Path(highrank_plugins.__file__).parent, package)
    keys = "import sys; from pathlib import Path; import highrank_plugins\n"
    keys += "from highrank_plugins.studies import definition, members\n"
    keys += "study = definition.read_study(Path(sys.argv[1]))\n"
    keys += "found = [m.key for m in members.prepare(study, Path('exp'))]\n"
    keys += "import json; print(json.dumps([highrank_plugins.__file__, found]))"

    def ask():
        command = [sys.executable, "-c", keys, str(file)]
        return json.loads(subprocess.check_output(command, cwd=package.parent))

    before = ask()
    assert before[0] == str(package / "__init__.py")
    for module in ("heads/base.py", "results/scoring.py", "studies/runner.py"):
        (package / module).write_text((package / module).read_text() + "\nX = 2\n")
    (own / "__pycache__" / "layer.pyc").write_bytes(b"")
    (own / "notes.txt").write_text("words")
    assert ask() == before
    (own / "layer.py").write_text("X = 2\n")
    assert ask()[1] != before[1]


@pytest.mark.parametrize("same", [("1e-3", 0.001), ("1E1", 10), (10.0, 10), ("-2e+1", -20)])
def test_one_number_written_in_two_ways_has_one_key(folder, same):
    first, second = (key_of(folder, set={"lr": value}) for value in same)
    assert first == second != key_of(folder, set={"lr": 7})


def test_names_that_resemble_numbers_are_text(folder):
    names = ["1", "1e", "e1", "1e1.pt"]
    assert len({key_of(folder, set={"restore_file": name}) for name in names}) == len(names)
