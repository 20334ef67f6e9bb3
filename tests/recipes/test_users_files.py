"""Recipes keep files of the user: they replace only what they have written."""

import pytest

from tests.recipes.toy import done_stages


def test_after_a_kill_half_written_output_of_other_stages_is_set_aside(toy):
    part = toy.run / "first.part"
    part.mkdir(parents=True)
    (part / "left").write_text("half")
    (part / ".key").write_text("of another time")
    result = toy()
    assert done_stages(result) == [0, 1, 2]
    assert sorted(path.name for path in (toy.run / "first").iterdir()) == [
        ".done", ".key", ".written", "file",
    ]  # fmt: skip
    assert not part.exists()
    (kept,) = toy.run.glob("first.part.before-*")
    assert "stage 0 first: was killed before its end; what it left" in result.stderr
    assert f"are kept in {kept}\n" in result.stderr
    assert (kept / "left").read_text() == "half"


@pytest.mark.parametrize("folder", ["first", "first.part", "second"])
def test_a_users_folder_named_like_a_stage_is_left_alone(toy, folder):
    chapter = toy.run / folder / "chapter1.txt"
    chapter.parent.mkdir(parents=True)
    chapter.write_text("It was a dark and stormy night.")
    result = toy()
    assert result.returncode == 2
    path = f"{toy.run}/{folder}"
    assert f"{path} was not written by this recipe, which would replace it" in result.stderr
    assert chapter.read_text() == "It was a dark and stormy night."


def test_a_users_file_in_the_folder_of_a_stage_is_left_alone(toy):
    toy()
    notes = toy.run / "first" / "my notes" / "today.txt"
    notes.parent.mkdir()
    notes.write_text("It was a dark and stormy night.")
    result = toy("--value", "2")
    assert result.returncode == 2
    message = "has files that this recipe has not written (my notes/today.txt ): move them away"
    assert f"{toy.run}/first {message}" in result.stderr
    assert notes.read_text() == "It was a dark and stormy night."
    notes.rename(toy.run.parent / "today.txt")
    assert done_stages(toy("--value", "2")) == [0, 1, 2]


def test_a_users_file_in_the_folder_of_a_failed_stage_is_left_alone(toy):
    part = toy.run / "first.part"
    assert toy("--value", "bad").returncode == 1
    (part / "notes.txt").write_text("It was a dark and stormy night.")
    result = toy()
    assert result.returncode == 2
    message = "has files that this recipe has not written (notes.txt ): move them away"
    assert f"{part} {message}" in result.stderr
    (part / "notes.txt").rename(toy.run.parent / "notes.txt")
    assert done_stages(toy()) == [0, 1, 2]
    assert not list(toy.run.glob("*.before-*"))


def test_an_empty_folder_named_like_a_stage_is_used(toy):
    (toy.run / "first").mkdir(parents=True)
    (toy.run / "second").mkdir()
    assert done_stages(toy()) == [0, 1, 2]


def test_a_run_refuses_a_folder_with_files_of_the_user(toy):
    toy.run.mkdir(parents=True)
    (toy.run / "config.yaml").write_text("mine: true")
    result = toy()
    assert result.returncode == 2
    assert "has files that no recipe has written (config.yaml )" in result.stderr
    assert [path.name for path in toy.run.iterdir()] == ["config.yaml"]
