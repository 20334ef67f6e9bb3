"""A recipe writes through no link that has the name of one of its files."""

import pytest

from tests.recipes.toy import TOY, done_stages


@pytest.mark.parametrize(
    "file",
    [".lock", "config.yaml", "results.json", "log/0-first.log", "second/.key", "second/.done"],
)
def test_a_link_in_place_of_a_file_is_refused_and_not_followed(toy, tmp_path, file):
    toy()
    victim, link = tmp_path / "victim", toy.run / file
    victim.write_text("precious")
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    result = toy("--value", "2")
    assert result.returncode == 2
    assert (
        f"{link} is a symbolic link, a pipe or a device in place of one of our files"
        in result.stderr
    )
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("folder", ["commands", "log"])
def test_a_link_in_place_of_a_folder_is_refused_and_not_followed(toy, tmp_path, folder):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file.sh").touch()
    toy.run.mkdir(parents=True)
    (toy.run / folder).symlink_to(tmp_path / "victim")
    result = toy()
    assert result.returncode == 2
    assert f"{toy.run / folder} is a symbolic link, a pipe or a device" in result.stderr
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["file.sh"]


@pytest.mark.parametrize("file", ["log/1-second.log", "log/2-third.log", "second/.key"])
def test_a_link_that_appears_while_a_recipe_runs_is_not_followed_by_later_stages(
    toy, tmp_path, file
):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    plant = f'mkdir -p "$run_dir/second"; ln -s "{victim}" "$run_dir/{file}"'
    script = toy.run.parents[1] / "run.sh"
    script.write_text(TOY.replace("; echo end;", f"; {plant};"))
    result = toy()
    assert result.returncode == 2
    assert f"{toy.run / file} is a symbolic link, a pipe or a device" in result.stderr
    assert victim.read_text() == "precious"


def test_a_finished_stage_may_be_moved_to_another_disk(toy, tmp_path):
    toy()
    (toy.run / "second").rename(tmp_path / "large")
    (toy.run / "second").symlink_to(tmp_path / "large")
    again = toy()
    assert again.returncode == 0, again.stderr
    assert done_stages(again) == []
