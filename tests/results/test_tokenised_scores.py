"""Tokenised BLEU as multi-bleu.perl counts it, with and without split compounds."""

import pytest

from highrank_plugins.results import scoring
from highrank_plugins.results.scoring import ScoreError, compare

REFERENCES = ["Eine Nord-Süd-Linie fährt hier sehr oft.", "Er liest 10 Bücher, sie nicht."]
HYPOTHESES = ["Eine Nord-Süd-Bahn fährt hier sehr oft.", "Er liest 10 Bücher, sie nicht."]


def test_the_parts_of_hyphenated_compounds_become_tokens():
    assert scoring.split_compounds("die Nord-Süd-Linie - gut") == (
        "die Nord ##AT##-##AT## Süd ##AT##-##AT## Linie - gut"
    )
    # what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints
    assert scoring.split_compounds("Ex-U-Boot") == "Ex ##AT##-##AT## U-Boot"


def test_splitting_gives_credit_for_parts():
    sides = (
        ["Eine Nord-Süd-Bahn fährt hier sehr oft."],
        ["Eine Nord-Süd-Linie fährt hier sehr oft."],
    )
    scores = scoring.tokenised_scores(*sides, "de", compound_split=True)
    plain, split = scores["bleu_tokenised"], scores["bleu_compound_split"]
    assert 0 < plain.value < split.value < 100
    assert "tok:none|smooth:none" in plain.signature
    assert plain.signature.endswith("-de") and split.signature.endswith("-de|compounds:split")


def test_tokenised_bleu_equals_the_value_computed_by_hand():
    # n-grams of 7 and 4 tokens; the one wrong token is in 1, 2, 2 and 2 of them
    scores = scoring.tokenised_scores(
        ["a x c d e f .", "g h i j"], ["a b c d e f .", "g h i j"], "en"
    )
    expected = (10 / 11 * 7 / 9 * 5 / 7 * 3 / 5) ** 0.25 * 100
    assert scores["bleu_tokenised"].value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("language", ["fr", "en", None])
def test_only_german_compounds_are_split(language):
    with pytest.raises(ScoreError, match="compounds are split for German only"):
        scoring.check_compounds(language)


def test_a_system_does_not_differ_from_itself(tmp_path):
    baseline = tmp_path / "other.de"
    baseline.write_text("".join(f"{line}\n" for line in HYPOTHESES))
    paired = compare([baseline], tmp_path / "ours", HYPOTHESES, REFERENCES)
    assert [s["p_value"] for s in paired["scores"]] == [None, 1.0]
    baseline.write_text("one line\n")
    with pytest.raises(ScoreError, match=r"other\.de: 1 lines for 2 references"):
        compare([baseline], tmp_path / "ours", HYPOTHESES, REFERENCES)
