"""Hypotheses come back complete, in the order of the input; BLEU of every kind by hand."""

import random

import pytest

from highrank_plugins.results import scoring
from highrank_plugins.results.scoring import read_hypotheses, read_lines, score


def generated(tmp_path, numbers, text="Satz"):
    path = tmp_path / "test.txt"
    lines = []
    for n in numbers:
        lines += [f"S-{n}\tquelle {n}", f"T-{n}\tziel", f"H-{n}\t-0.5\t▁{text}"]
        lines += [f"D-{n}\t-0.5\t{text} {n}", f"P-{n}\t-0.1"]
    lines.append("Generate test with beam=5: BLEU4 = 1.00")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_hypotheses_are_read_in_the_order_of_the_inputs(tmp_path, caplog):
    for count in (1, 1014):
        path = generated(tmp_path, random.Random(count).sample(range(count), count))
        assert read_hypotheses(path, count) == [f"Satz {n}" for n in range(count)]
    assert not caplog.text
    path.write_text("INFO | {'beam': 5, 'prefix_size': 2}\nD-0\t-1.0\t\n")
    assert read_hypotheses(path, 1) == [""]
    assert "--prefix-size" in caplog.text and "their score is too high" in caplog.text


@pytest.mark.parametrize(("numbers", "message"), [
    ([0, 2, 3], r"3 hypotheses for 4 inputs; the first input without one is line 2"),
    ([0, 1, 2, 3, 4], r"5 hypotheses for 4 inputs"),
    ([0, 1, 2, 2, 3], r"several hypotheses D-2; generate with --nbest 1"),
    ([], r"1 lines for 4 inputs, and no line of fairseq-generate"),
    ([0, 1, 2, 3], r"the last line is cut"),
])  # fmt: skip
def test_missing_repeated_or_cut_hypotheses_are_errors(tmp_path, numbers, message):
    path = generated(tmp_path, numbers)
    if "cut" in message:
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"Satz 3\n")])
    with pytest.raises(ValueError, match=message):
        read_hypotheses(path, 4)


def test_only_line_feeds_end_lines(tmp_path):
    text = "a\u2028b\u0085c\x0cd"
    assert read_hypotheses(generated(tmp_path, [0], text), 1) == [f"{text} 0"]
    path = tmp_path / "reference"
    path.write_text(f"{text}\nlast", encoding="utf-8")
    assert read_lines(path) == [text, "last"]
    path.write_bytes(b"\xef\xbb\xbfa b\rc d\r\nlast\r\n")
    assert read_lines(path) == ["a b\rc d", "last"]


def test_scores_have_signatures():
    references = ["Der Hund läuft schnell.", "Die Katze schläft."]
    perfect = score(references, references)
    assert perfect["sacrebleu"].value == perfect["chrf"].value == 100
    assert {"tok:13a", "case:mixed"} <= {*perfect["sacrebleu"].signature.split("|")}
    assert score([r.lower() for r in references], references)["sacrebleu"].value < 100
    for hypotheses, other in ((["a"], references), ([], [])):
        with pytest.raises(ValueError, match="numbers must match and be at least 1"):
            score(hypotheses, other)


def test_tokenised_bleu_equals_the_value_computed_by_hand_and_splitting_gives_credit_for_parts():
    # n-grams of 7 and 4 tokens; the one wrong token is in 1, 2, 2 and 2 of them
    texts = ["a x c d e f .", "g h i j"], ["a b c d e f .", "g h i j"]
    scores = scoring.tokenised_scores(*texts, "en")
    expected = (10 / 11 * 7 / 9 * 5 / 7 * 3 / 5) ** 0.25 * 100
    assert scores["bleu_tokenised"].value == pytest.approx(expected, abs=0.01)
    assert scoring.split_compounds("die Nord-Süd-Linie - gut") == (
        "die Nord ##AT##-##AT## Süd ##AT##-##AT## Linie - gut"
    )
    # what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints
    assert scoring.split_compounds("Ex-U-Boot") == "Ex ##AT##-##AT## U-Boot"
    sides = ([f"Eine Nord-Süd-{word} fährt hier sehr oft."] for word in ("Bahn", "Linie"))
    scores = scoring.tokenised_scores(*sides, "de", compound_split=True)
    plain, split = scores["bleu_tokenised"], scores["bleu_compound_split"]
    assert 0 < plain.value < split.value < 100
    assert "tok:none|smooth:none" in plain.signature
    assert plain.signature.endswith("-de") and split.signature.endswith("-de|compounds:split")
