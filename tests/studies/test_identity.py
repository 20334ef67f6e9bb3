"""Test studies/identity.py: what changes the address of a member, and what does not."""

from pathlib import Path

import pytest

from highrank_plugins.studies import identity
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.prepared import prepare
from tests.studies.stub import write_stub, write_study

MEMBERS = {"members": {"mos": {"conf": "mos"}}, "seeds": [1]}


def key_of(folder, **changes):
    for cached in (identity.files_digest, identity.script_digest):
        cached.cache_clear()
    (member,) = prepare(read_study(write_study(folder, MEMBERS | changes)), folder / "exp")
    return member.key


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a b\n")
    return tmp_path


def test_everything_that_numbers_depend_on_changes_the_key(folder):
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
    assert len({*keys}) == len(keys)


def test_names_places_and_comments_do_not_change_the_key(folder):
    key = key_of(folder, options={"data": "text"})
    (folder / "text").rename(folder / "moved")
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "# more words\n")
    renamed = {"members": {"other": {"conf": "mos", "set": {"lr": 1}}}}
    assert key_of(folder, options={"data": "moved"}, baseline="other", **renamed) == key


@pytest.mark.parametrize("same", [("1e-3", 0.001), ("1E1", 10), (10.0, 10), ("-2e+1", -20)])
def test_one_number_written_in_two_ways_has_one_key(folder, same):
    first, second = (key_of(folder, set={"lr": value}) for value in same)
    assert first == second != key_of(folder, set={"lr": 7})


def test_names_that_resemble_numbers_are_text(folder):
    names = ["1", "1e", "e1", "1e1.pt"]
    assert len({key_of(folder, set={"restore_file": name}) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("place", "text", "same"),
    [
        ("heads/a.py", '"""Other words."""\n\nX = 1  # a comment\n', True),
        ("heads/a.py", "X = 2\n", False),
        ("heads/b.cpp", "int x;", False),
        ("cli/a.py", "X = 5\n", True),
        ("results/verdicts.py", "X = 5\n", True),
        ("results/scoring.py", "X = 5\n", False),
        ("heads/notes.md", "words", True),
    ],
)
def test_only_code_that_numbers_depend_on_changes_the_digest(tmp_path, place, text, same):
    package = tmp_path / "package"
    for room in ("heads", "cli", "results"):
        (package / room).mkdir(parents=True)
    (package / "heads" / "a.py").write_text('"""Words."""\nX = 1\n')
    identity.code_digest.cache_clear()
    before = identity.code_digest(package)
    Path(package / place).write_text(text)
    identity.code_digest.cache_clear()
    assert (identity.code_digest(package) == before) == same


def test_what_does_not_count_exists():
    package = Path(identity.__file__).parents[1]
    assert [name for name in identity._APART if not (package / name).exists()] == []
