"""BLEU and perplexity of responses (recipes/switchboard/score.py): by hand, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from highrank_plugins.cli import as_command
from recipes.switchboard.score import (
    ORDERS,
    dialogue_score,
    dialogue_scores,
    precision_recall,
    response_perplexity,
    sentence_bleu,
)

# hypothesis | reference → BLEU-1 to BLEU-4 of NLTK 3.10.4: sentence_bleu([reference], hypothesis,
# weights=(1/N,) * N, smoothing_function=SmoothingFunction().method7)
NLTK = {
    "i like it a lot | i like it a lot": (
        1.333333333333, 1.217161238900, 1.153887578189, 1.116747096418),
    "yeah | yeah": (1.000000000000, 0.577350269190, 0.333333333333, 0.192450089730),
    "oh yeah i know | i know what you mean yeah": (
        0.505442216427, 0.384687438591, 0.253806647011, 0.177554155865),
    "a b | c d": (0.0, 0.0, 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("sentences", NLTK)
def test_sentence_bleu_equals_nltks_numbers(sentences):
    hypothesis, reference = (text.split() for text in sentences.split(" | "))
    assert sentence_bleu(hypothesis, reference) == pytest.approx(NLTK[sentences], abs=1e-11)
    assert sentence_bleu([], ["yes"]) == [0.0] * 4


def test_precision_and_recall_follow_their_definition():
    hypotheses = [text.split() for text in ("oh yeah", "no", "well i do not know")]
    references = [text.split() for text in ("yeah", "i do not think so")]
    table = [[sentence_bleu(h, r) for r in references] for h in hypotheses]
    for order in range(4):
        each = [[cell[order] for cell in row] for row in table]
        precision = sum(max(row) for row in each) / 3
        recall = sum(max(row[j] for row in each) for j in range(2)) / 2
        got = precision_recall(hypotheses, references)
        assert got[:, order] == pytest.approx([precision, recall])
        assert precision != recall


def test_contexts_weigh_equally_whatever_their_number_of_references():
    one = ([["yeah"]], [["yeah"]])
    many = ([["no"]] * 4, [["yeah"], ["oh"], ["well"]])
    scores = dialogue_scores([one, many])
    assert list(scores) == [f"bleu{n}_{name}" for n in ORDERS for name in ("precision", "recall")]
    assert scores["bleu1_precision"].value == 0.5
    assert scores["bleu4_recall"].value == round(NLTK["yeah | yeah"][3] / 2, 4)
    assert scores["bleu2_recall"].signature == (
        "order:2|smooth:nltk-method7|contexts:2|hypotheses:5|references:4"
    )
    with pytest.raises(ValueError, match="no contexts"):
        dialogue_scores([])


LINES_SCORED = ["T-1\tno", "P-1\t-1.0000 -3.0000", "H-0\t-2\toh yeah", "P-0\t-4.5 -0.5 -1.0"]


def perplexity(folder, scored):
    (folder / "scored").write_text("\n".join(scored) + "\n")
    (folder / "responses").write_text("oh yeah\nno\n")
    return response_perplexity(folder / "scored", folder / "responses")


def test_the_perplexity_is_two_to_the_power_of_the_mean_loss(tmp_path):
    found = perplexity(tmp_path, LINES_SCORED)
    assert (found.value, found.signature, found.certificate) == (4.0, "tokens:5", "")
    found = perplexity(tmp_path, [*LINES_SCORED, "signature: ppl|unit:word|mass:1-2e-7"])
    assert (found.value, found.certificate) == (4.0, "ppl|unit:word|mass:1-2e-7")


@pytest.mark.parametrize(("scored", "message"), [
    (LINES_SCORED[:2], "scored: scores 1 responses, .*responses has 2"),
    ([*LINES_SCORED, "P-2\t-1.0"], "scored: scores 3 responses, .*responses has 2"),
    ([*LINES_SCORED[:3], "P-0\t-4.5 -0.5"], "2 scores for the 2 words and the end of .*es:1"),
    (["P-1\t-1.0 nan", LINES_SCORED[3]], "a score is not finite"),
    (["P-1\t-1.0 -inf", LINES_SCORED[3]], "a score is not finite"),
])  # fmt: skip
def test_lost_and_broken_scores_are_errors(scored, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        perplexity(tmp_path, scored)


def test_the_command_writes_or_prints_scores_and_refuses_bad_hypotheses(tmp_path):
    """Two contexts are scored, of which the second comes first."""
    generated = ["S-1\t<other> x", "D-1\t-0.1\tno", "D-1\t-0.2\toh no"]
    generated += ["D-0\t-1\tyeah", "D-0\t-1\toh"]
    texts = {"generated": "\n".join(generated), "references": "yeah\tright\nno"}
    texts |= {"scored": "P-0\t-1.0 -3.0\nP-1\t-2.0 -2.0", "responses": "yeah\nno"}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")

    def score(*words):
        given = [str(tmp_path / name) for name in ("generated", "references")]
        return CliRunner().invoke(as_command(dialogue_score), [*given, *map(str, words)])

    words = ["--scored", tmp_path / "scored", "--responses", tmp_path / "responses"]
    done = score(*words, "--output", tmp_path / "scores.json")
    assert done.exit_code == 0, done.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert next(iter(scores)) == "test_perplexity"
    assert scores["test_perplexity"] == {"value": 4.0, "signature": "tokens:4"}
    assert scores["bleu1_recall"]["value"] == 0.75  # "right" is nobody's response
    printed = score().stdout
    assert "bleu1_recall 0.75 " in printed and "perplexity" not in printed
    done = score("--scored", tmp_path / "scored")
    assert done.exit_code == 2 and "--scored and --responses belong together" in done.output
    with (tmp_path / "references").open("a") as file:
        file.write("one more\n")
    done = score()
    assert done.exit_code == 2
    assert "2 hypotheses for 3 inputs; the first input without one is line 3" in done.output
