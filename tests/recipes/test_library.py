"""recipes/lib/recipe.sh with a toy recipe: options, stages, changes, failures, kills, and files of
the user, which are kept: it replaces only what it wrote, and writes through no link."""

import shutil

import pytest

from tests.recipes.conftest import LIBRARY, TOY
from tests.recipes.running import RECIPES, begin, kill, refused, run, stages_done, wait_for


def test_stages_run_once_and_again_when_an_option_has_changed(toy, tmp_path):
    first = toy()
    assert stages_done(first) == [0, 1, 2] and "turns: 1000\n" in first.stderr
    assert (toy.run / "third" / "file").read_text() == "first 1\n"
    (toy.run / "second").rename(tmp_path / "another disk")
    (toy.run / "second").symlink_to(tmp_path / "another disk")
    again = toy(GOMP_SPINCOUNT="7")  # waiting threads leave the core to others
    assert stages_done(again) == [] and "turns: 7\n" in again.stderr
    assert again.stderr.count("already done, and nothing has changed") == 3
    assert again.stdout == first.stdout == "set: \n" and "options: " not in first.stderr
    result = toy("--value", "2", OMP_WAIT_POLICY="active")
    assert stages_done(result) == [0, 1, 2] and "turns: \n" in result.stderr
    assert (toy.run / "third" / "file").read_text() == "first 2\n"
    (kept,) = toy.run.glob("second.before-*")
    assert (kept / "file").read_text() == "first 1\n" and str(kept.name) in result.stderr
    shutil.rmtree(toy.run / "first")  # cannot be compared, and nothing needs it
    assert stages_done(toy("--value", "2", "--stage", "2")) == []


OTHER = "was run with other options or inputs than this command's"


@pytest.mark.parametrize(("changes", "words", "found"), [
    ({"../../notes.log": "new"}, "", [2]),
    ({"second/file": "other\n"}, "", [2]),
    ({"second/file": None, "second/.done": None}, "", [1]),
    ({"second/.done": None}, "--stage=1 --stop-stage=1", [1]),
    ({"../../notes.log": None}, "--stage 2 --stop-stage 2", "stage 2 (third) needs"),
    ({"second/file": None}, "", "needs {}/second/file, which was removed: remove {}/second/"),
    ({"first/file": "other\n"}, "--stage 2", f"stage 1 (second) {OTHER}"),
    ({"second/.done": None}, "--stage 2", "stage 1 (second) is incomplete; run --stage 1 to"),
    ({}, "--stage 2 --value 7", f"stage 0 (first) {OTHER}"),
    ({}, "--name new --stage 1", "new/first: start with an earlier --stage"),
], ids=str)  # fmt: skip
def test_what_has_changed_is_repeated_or_refused(toy, changes, words, found):
    toy()
    for name, text in changes.items():
        file = toy.run / name
        file.unlink() if text is None else file.write_text(text)
    if isinstance(found, list):
        assert stages_done(toy(*words.split())) == found
    else:
        toy.script.write_text(TOY.replace('touch -a "$notes"', ":"))
        assert "done in" not in toy.refused(found.replace("{}", str(toy.run)), *words.split())


@pytest.mark.parametrize(("arguments", "message"), [
    ("--stop-stge 1", "unknown option --stop-stge; see --help"),
    ("--value --name x", "option --value needs a value"),
    ("--stage toy", "--stage 'toy': a stage is a number from 0 to 2"),
    ("--stop-stage=", "--stop-stage '': a stage is"),
    ("--stage=2 --stop-stage=1", "--stage 2 is after --stop-stage 1"),
    ("--name a:b", "run/a:b has a colon, at which fairseq divides paths: choose another folder by"),
])  # fmt: skip
def test_wrong_options_end_with_exit_code_2(toy, arguments, message):
    toy.refused(message, *arguments.split())
    assert not toy.run.exists()


def test_options_come_from_flags_alone(toy):
    assert toy("--set", "c d", value="7", name="elsewhere").stdout == "set: c d\n"
    assert (toy.run / "first" / "file").read_text() == "first 1\n"


NEEDS = "recipes need Linux with bash 4.4 or later, flock (of util-linux) and GNU coreutils"


def test_an_old_bash_and_missing_programs_are_refused(toy, tmp_path):
    old = LIBRARY.read_text().replace("BASH_VERSINFO", "old_version")
    (tmp_path / "recipe.sh").write_text(f"old_version=(4 3)\n{old}")
    refused(["bash", tmp_path / "recipe.sh"], NEEDS)
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "date", "sort"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    assert "flock is missing" in toy.refused(NEEDS, PATH=str(tmp_path / "bin"))


def test_damaged_binarised_data_is_refused_before_the_work_is_moved_away(toy):
    sums = '(cd "$out" && sha256sum file >sha256sums)'
    toy.script.write_text(TOY.replace("; echo end;", f"; {sums};"))
    assert stages_done(toy()) == [0, 1, 2]
    first = toy.run / "first"
    (first / "file").write_text("damage")
    toy.refused(f"{first} was changed or damaged since it was written (file: FAILED)")
    assert list(toy.run.glob("second.before-*")) == []
    (first / ".done").unlink()
    assert stages_done(toy()) == [0]


def test_a_failed_stage_is_named_with_its_log_and_leaves_no_output(toy):
    said, log = toy("--value", "bad", code=1).stderr, toy.run / "log" / "0-first.log"
    assert f"stage 0 (first) failed with exit code 1; its output is in {log}" in said
    assert log.read_text() == "first bad\n"  # nothing ran after it
    assert not (toy.run / "first").exists()
    shutil.rmtree(toy.run.parent)
    toy.run.parent.touch()
    said = toy.refused(f"error: {toy.run} cannot be written (mkdir: ")
    assert "Not a directory): choose another folder by --exp-dir or --name" in said


def test_a_second_process_is_refused_and_a_killed_ones_work_is_continued(toy):
    process = begin(["bash", "run.sh"], toy.script.parent, hold="1")
    wait_for((toy.run / "holding").exists, process)
    said = toy.refused(f"another process is working in {toy.run}")
    assert f"process {process.pid}" in said
    kill(process)
    toy.refused("stage 1 (second) is incomplete; run --stage 1 to resume it", "--stage", "2")
    assert not (toy.run / "third").exists()
    assert stages_done(toy()) == [1, 2]
    assert (toy.run / "third" / "file").read_text() == "first 1\n" * 2


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


CONFIGURED = f"""\
#!/usr/bin/env bash
# A toy with a configuration.

source "{RECIPES}/lib/training.sh"

conf=a  # the configuration
code=   # digest of the user's layers
parse_options "$@"

highrank() {{
    mkdir -p -- "$commands"
    echo "${{set[*]-}}" >"$config"
    echo "training_key=options$code dry_run=${{launch:+yes}}" >"$commands/settings.sh"
}}
train() {{ echo trained >"$out/file"; }}
collect() {{ echo "the score" >"$out/summary.txt"; }}
open_configured_run
run_resumable_stage 3 train "train" train "$training_key"
run_stage 6 score "score" collect "$(<"$config")" "$run_dir/train"
show_summary "a score"
"""


def test_what_does_nothing_leaves_the_configuration_of_a_run_and_no_folder(tmp_path):
    """Other code of the user trains again; a dry run and refusals change no file."""
    (tmp_path / "run.sh").write_text(CONFIGURED)
    command = ["bash", tmp_path / "run.sh", "--exp-dir", tmp_path / "exp", "--set", "lr=1"]
    run_dir = tmp_path / "exp" / tmp_path.name / "a"
    refused([*command, "--stage", "7"], f"stage 7 (summary) needs {run_dir}/score/summary.txt")
    assert not (tmp_path / "exp").exists()
    result = run(command)
    assert stages_done(result) == [3, 6] and result.stdout == "the score\n"
    assert stages_done(run(command)) == []
    other = [*command, "--set", "lr=2"]
    assert "nothing was done" in run([*other, "--launch=--dry-run"]).stderr
    refused([*other, "--stage", "6", "--code", "new"], f"stage 3 (train) {OTHER}")
    assert (run_dir / "config.yaml").read_text() == "lr=1\n"
    assert stages_done(run([*command, "--code", "new"])) == [3]
