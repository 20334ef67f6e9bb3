"""Hypotheses come back complete and in the order of the input; scores carry signatures."""

import random

import pytest

from highrank_plugins.common.text_lines import TextError
from highrank_plugins.results.scoring import ScoreError, read_hypotheses, read_lines, score


def generated(tmp_path, numbers, text="Satz"):
    path = tmp_path / "test.txt"
    lines = []
    for n in numbers:
        lines += [f"S-{n}\tquelle {n}", f"T-{n}\tziel", f"H-{n}\t-0.5\t▁{text}"]
        lines += [f"D-{n}\t-0.5\t{text} {n}", f"P-{n}\t-0.1"]
    lines.append("Generate test with beam=5: BLEU4 = 1.00")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("count", [1, 7, 1008, 1014])
def test_hypotheses_are_read_in_the_order_of_the_inputs(tmp_path, count):
    numbers = random.Random(count).sample(range(count), count)
    got = read_hypotheses(generated(tmp_path, numbers), count)
    assert got == [f"Satz {n}" for n in range(count)]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 2, 3], r"3 hypotheses for 4 inputs; the first input without one is line 2"),
        ([0, 1, 2, 3, 4], r"5 hypotheses for 4 inputs"),
        ([0, 1, 2, 2, 3], r"several hypotheses D-2; generate with --nbest 1"),
        ([], r"1 lines for 4 inputs, and no line of fairseq-generate"),
    ],
)
def test_missing_or_repeated_hypotheses_are_errors(tmp_path, numbers, message):
    with pytest.raises(ScoreError, match=message):
        read_hypotheses(generated(tmp_path, numbers), 4)


def test_a_hypothesis_that_is_cut_is_an_error(tmp_path):
    path = generated(tmp_path, range(4))
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"Satz 3\n")])
    with pytest.raises(ScoreError, match="the last line is cut"):
        read_hypotheses(path, 4)


def test_only_line_feeds_end_lines(tmp_path):
    text = "a\u2028b\u0085c\x0cd"
    assert read_hypotheses(generated(tmp_path, [0], text), 1) == [f"{text} 0"]
    path = tmp_path / "reference"
    path.write_text(f"{text}\nlast", encoding="utf-8")
    assert read_lines(path) == [text, "last"]
    path.write_bytes(b"\xef\xbb\xbfa b\rc d\r\nlast\r\n")
    assert read_lines(path) == ["a b\rc d", "last"]


def test_bytes_that_are_not_text_are_named(tmp_path):
    path = tmp_path / "reference"
    path.write_bytes(b"gut\ncaf\xe9\n")
    with pytest.raises(TextError, match="reference:2:4: byte 0xe9 is not UTF-8"):
        read_lines(path)


def test_translations_that_begin_with_the_reference_are_named(tmp_path, caplog):
    path = generated(tmp_path, [0])
    read_hypotheses(path, 1)
    assert not caplog.text
    path.write_text("INFO | {'beam': 5, 'prefix_size': 2}\n" + path.read_text())
    assert read_hypotheses(path, 1) == ["Satz 0"]
    assert "--prefix-size" in caplog.text and "their score is too high" in caplog.text


def test_an_empty_hypothesis_is_kept(tmp_path):
    path = tmp_path / "test.txt"
    path.write_text("D-0\t-1.0\t\n")
    assert read_hypotheses(path, 1) == [""]


def test_scores_have_signatures():
    references = ["Der Hund läuft schnell.", "Die Katze schläft."]
    perfect = score(references, references)
    assert perfect["sacrebleu"].value == 100
    assert perfect["chrf"].value == 100
    assert "tok:13a" in perfect["sacrebleu"].signature
    assert "case:mixed" in perfect["sacrebleu"].signature
    assert score([r.lower() for r in references], references)["sacrebleu"].value < 100


@pytest.mark.parametrize("hypotheses", [["a"], []])
def test_numbers_of_sentences_must_agree(hypotheses):
    with pytest.raises(ScoreError):
        score(hypotheses, ["a", "b"] if hypotheses else [])
