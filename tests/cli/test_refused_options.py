"""Options of `highrank` that cannot be meant: of `model average`, and languages."""

import pytest

from highrank_plugins.cli.data import language_pair
from tests.cli.test_highrank import called


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output .", "--output . is a directory: name the file to write"),
        ("--output a.pt --last 2 --best 2", "--last and --best exclude each other"),
    ],
)
def test_an_invalid_average_is_refused_before_anything_is_read(tmp_path, words, message):
    result = called("model", "average", "train", *words.split(), cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.strip() == f"highrank: {message}"
    assert list(tmp_path.iterdir()) == []


def test_no_checkpoint_of_the_run_is_overwritten(tmp_path):
    last = tmp_path / "train" / "checkpoint_last.pt"
    last.parent.mkdir()
    last.write_bytes(b"kept")
    result = called("model", "average", "train", "--output", last, cwd=tmp_path)
    assert result.returncode == 2
    assert f"--output {last} is a file of the training run: name another" in result.stderr
    assert last.read_bytes() == b"kept"


def test_two_languages_are_split_at_the_comma():
    assert language_pair("en,de") == ("en", "de")
    for text in ("", "en", "en,", ",de", "en,de,fr"):
        with pytest.raises(ValueError, match=f"--languages {text}: expected SOURCE,TARGET"):
            language_pair(text)
    with pytest.raises(ValueError, match="--languages de,de: source and target are the same"):
        language_pair("de,de")


def test_pieces_of_a_language_are_not_written_twice(tmp_path):
    words = ["pieces", "text", "pieces", "--languages", "en,en", "--vocab-size", "100"]
    done = called("data", *words, cwd=tmp_path)
    assert done.returncode == 2 and "--languages en,en: en is given twice" in done.stderr
    assert not (tmp_path / "pieces").exists()
