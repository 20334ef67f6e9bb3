"""Recipes keep files of the user: they replace only what they wrote, and write through no link."""

import shutil

import pytest

from tests.recipes.conftest import TOY
from tests.recipes.running import stages_done

STORY = "It was a dark and stormy night."
LINK = "is a symbolic link, a pipe or a device in place of one of our files"
NOT_OURS = "was not written by this recipe, which would replace it"
MORE = "has files that this recipe has not written"


def test_after_a_kill_half_written_output_of_other_stages_is_set_aside(toy):
    part = toy.run / "first.part"
    part.mkdir(parents=True)
    (part / "left").write_text("half")
    (part / ".key").write_text("of another time")
    (toy.run / "second").mkdir()  # empty, so it is used
    result = toy()
    assert stages_done(result) == [0, 1, 2]
    names = [".done", ".key", ".written", "file"]
    assert sorted(path.name for path in (toy.run / "first").iterdir()) == names
    (kept,) = toy.run.glob("first.part*")
    assert "stage 0 first: was killed before its end; what it left" in result.stderr
    assert f"are kept in {kept}\n" in result.stderr and (kept / "left").read_text() == "half"


# what ran before, the user's file, the next run's value, and what the recipe says
@pytest.mark.parametrize(("before", "file", "value", "message"), [
    (None, "first/chapter1.txt", "1", f"first {NOT_OURS}"),
    (None, "first.part/chapter1.txt", "1", f"first.part {NOT_OURS}"),
    (None, "second/chapter1.txt", "1", f"second {NOT_OURS}"),
    ("1", "first/my notes/today.txt", "2", f"first {MORE} (my notes/today.txt ): move them away"),
    ("bad", "first.part/notes.txt", "1", f"first.part {MORE} (notes.txt ): move them away"),
    (None, "config.yaml", "1", "has files that no recipe has written (config.yaml )"),
])  # fmt: skip
def test_a_users_file_is_left_alone_and_the_recipe_runs_once_it_is_elsewhere(
    toy, tmp_path, before, file, value, message
):
    if before:
        toy("--value", before, code=int(before == "bad"))
    mine = toy.run / file
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text(STORY)
    toy.refused(message, "--value", value)
    assert mine.read_text() == STORY
    mine.rename(tmp_path / "mine.txt")
    assert stages_done(toy("--value", value))[-2:] == [1, 2]
    assert before != "bad" or not [*toy.run.glob("*.before-*")]


def test_a_link_in_place_of_a_file_or_folder_is_refused_and_not_followed(toy, tmp_path):
    """Also one that appears while a recipe runs."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text(STORY)
    folder.mkdir()
    for file in "log/1-second.log", "log/2-third.log", "second/.key":
        plant = f'mkdir -p "$run_dir/second"; ln -s "{victim}" "$run_dir/{file}"'
        toy.script.write_text(TOY.replace("; echo end;", f"; {plant};"))
        toy.refused(f"{toy.run / file} {LINK}")
        shutil.rmtree(toy.run)
    toy.script.write_text(TOY)
    toy()
    places = ".lock config.yaml results.json log/0-first.log second/.key second/.done commands log"
    for file in places.split():
        link, kept = toy.run / file, toy.run.parent / "kept"
        there = link.exists()
        if there:
            link.rename(kept)
        link.symlink_to(folder if file in ("commands", "log") else victim)
        toy.refused(f"{link} {LINK}", "--value", "2")
        link.unlink()
        if there:
            kept.rename(link)
    assert victim.read_text() == STORY and not [*folder.iterdir()]
