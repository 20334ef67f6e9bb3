"""`--languages SOURCE,TARGET`."""

import pytest
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.cli.data import language_pair


def test_two_languages_are_split_at_the_comma():
    assert language_pair("en,de") == ("en", "de")


@pytest.mark.parametrize("text", ["", "en", "en,", ",de", "en,de,fr"])
def test_other_numbers_of_languages_are_refused(text):
    with pytest.raises(ValueError, match=f"--languages {text}: expected SOURCE,TARGET"):
        language_pair(text)


def test_a_language_is_not_paired_with_itself():
    with pytest.raises(ValueError, match="--languages de,de: source and target are the same"):
        language_pair("de,de")


def test_pieces_of_a_language_are_not_written_twice(tmp_path):
    words = ["pieces", str(tmp_path / "text"), str(tmp_path / "pieces"), "--languages", "en,en"]
    done = CliRunner().invoke(app, ["data", *words, "--vocab-size", "100"])
    assert done.exit_code == 2 and "--languages en,en: en is given twice" in done.output
    assert not (tmp_path / "pieces").exists()
