"""`--languages SOURCE,TARGET`."""

import pytest

from highrank_plugins.cli.data.bitext import language_pair


def test_two_languages_are_split_at_the_comma():
    assert language_pair("en,de") == ("en", "de")


@pytest.mark.parametrize("text", ["", "en", "en,", ",de", "en,de,fr"])
def test_other_numbers_of_languages_are_refused(text):
    with pytest.raises(ValueError, match=f"--languages {text}: expected SOURCE,TARGET"):
        language_pair(text)


def test_a_language_is_not_paired_with_itself():
    with pytest.raises(ValueError, match="--languages de,de: source and target are the same"):
        language_pair("de,de")
