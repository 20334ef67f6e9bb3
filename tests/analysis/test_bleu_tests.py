"""sacreBLEU's paired tests, with its own numbers and signature."""

import random

import pytest
from sacrebleu.metrics import BLEU, CHRF

from highrank_plugins.analysis import paired_bleu

WORDS = "the a cat dog sat ran on under over mat tree car by in old new red".split()


def sentences(count=60):
    generator = random.Random(1)
    return [" ".join(generator.choices(WORDS, k=9)) for _ in range(count)]


def spoiled(lines, every):
    """Replace the last three words of every n-th sentence."""
    return [
        line if i % every else " ".join([*line.split()[:-3], "x", "y", "z"])
        for i, line in enumerate(lines)
    ]


REFERENCE = sentences()
GOOD, BAD = spoiled(REFERENCE, 7), spoiled(REFERENCE, 2)


@pytest.mark.parametrize(("test", "samples"), [("bootstrap", 200), ("randomisation", 300)])
def test_a_clear_difference_is_found_and_identical_systems_show_none(test, samples):
    systems = {"baseline": BAD, "good": GOOD, "the same": BAD}
    found = paired_bleu(systems, [REFERENCE], test, samples)
    assert [score.system for score in found.scores] == list(systems)
    baseline, good, same = found.scores
    assert baseline.p_value is None
    assert good.p_value < 0.05
    assert same.p_value == 1  # not the 1 / (samples + 1) of a count of greater differences
    for score, lines in ((baseline, BAD), (good, GOOD), (same, BAD)):
        expected = BLEU().corpus_score(lines, [REFERENCE]).score
        assert score.score == pytest.approx(expected, rel=1e-12)
    assert f"{'bs' if test == 'bootstrap' else 'ar'}:{samples}" in found.signature
    assert "seed:12345" in found.signature
    assert "tok:13a" in found.signature


def test_another_metric_can_be_compared():
    found = paired_bleu({"a": BAD, "b": GOOD}, [REFERENCE], samples=20, metric=CHRF())
    expected = CHRF().corpus_score(GOOD, [REFERENCE]).score
    assert found.scores[1].score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("systems", "references", "test", "message"),
    [
        ({"a": BAD}, [REFERENCE], "bootstrap", "a baseline and a system"),
        ({"a": BAD, "b": GOOD[1:]}, [REFERENCE], "bootstrap", "'system b': 59"),
        ({"a": BAD, "b": GOOD}, [REFERENCE[1:]], "bootstrap", "'reference 0': 59"),
        ({"a": BAD, "b": GOOD}, [], "bootstrap", "same number of lines"),
        ({"a": BAD, "b": GOOD}, [REFERENCE], "bs", "expected one of bootstrap, randomisation"),
    ],
)
def test_bad_input_is_refused(systems, references, test, message):
    with pytest.raises(ValueError, match=message):
        paired_bleu(systems, references, test)
