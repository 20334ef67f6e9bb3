"""Test common/names.py."""

from pathlib import Path

import pytest

from highrank_plugins.common.names import did_you_mean, distinct_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/mos.json", "b/softmax.json"], ["mos", "softmax"]),
        (["exp/mos/results.json", "exp/gss/results.json"], ["mos/results", "gss/results"]),
        (["x/a/r.json", "y/a/r.json", "y/b/r.json"], ["x/a/r", "y/a/r", "y/b/r"]),
        (["test.de", "test.en"], ["test.de", "test.en"]),
        ([], []),
    ],
)
def test_names_are_as_short_as_they_can_be(paths, names):
    assert distinct_names([Path(path) for path in paths]) == names


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("max_tokns", ["lr", "max_tokens"], "max_tokens"),
        ("learning_rate", ["min_lr", "lr"], "lr"),
        ("--learning-rate", ["--lr", "--lr-scheduler"], "--lr"),
        ("num_beams", ["beam", "nbest"], "beam"),
    ],
)
def test_a_similar_name_or_a_synonym_is_suggested(word, known, meant):
    assert did_you_mean(word, known) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("word", ["qqqq", "learning_rate"])
def test_words_without_a_similar_name_get_no_suggestion(word):
    assert did_you_mean(word, ["arch", "seed"]) == ""


def test_a_file_given_twice_is_named():
    with pytest.raises(ValueError, match=r"a\.json is given twice"):
        distinct_names([Path("a.json"), Path("b.json"), Path("a.json")])
