"""Smoothed BLEU against known numbers and a slow count; precision and recall by hand."""

import math
import random

import pytest

from highrank_plugins.results.scoring import (
    ORDERS,
    ScoreError,
    dialogue_scores,
    precision_recall,
    sentence_bleu,
)

# hypothesis | reference → BLEU-1 to BLEU-4 of NLTK 3.10.4: sentence_bleu([reference], hypothesis,
# weights=(1/N,) * N, smoothing_function=SmoothingFunction().method7)
NLTK = {
    "i like it a lot | i like it a lot": (
        1.333333333333, 1.217161238900, 1.153887578189, 1.116747096418),
    "i like it | i like it": (1.000000000000, 1.018350154435, 1.013978363419, 0.746668139342),
    "yeah | yeah": (1.000000000000, 0.577350269190, 0.333333333333, 0.192450089730),
    "yeah | oh yeah": (0.367879441171, 0.212395294390, 0.122626480390, 0.070798431463),
    "oh yeah i know | i know what you mean yeah": (
        0.505442216427, 0.384687438591, 0.253806647011, 0.177554155865),
    "well i do not know about that | i do not think so": (
        0.619047619048, 0.508762555820, 0.399317056636, 0.280869338091),
    "we have two dogs and two cats | they have two cats": (
        0.619047619048, 0.508762555820, 0.331247851212, 0.215479103059),
    "the the the the the the | the cat is on the mat": (
        0.555555555556, 0.337833018099, 0.208877817588, 0.133051885050),
    "a b | c d": (0.0, 0.0, 0.0, 0.0),
    "so what do you do | what do you do for a living": (
        0.580944039898, 0.558748978517, 0.523004549878, 0.472373020111),
}  # fmt: skip


@pytest.mark.parametrize("sentences", NLTK)
def test_sentence_bleu_equals_nltks_numbers(sentences):
    hypothesis, reference = (text.split() for text in sentences.split(" | "))
    assert sentence_bleu(hypothesis, reference) == pytest.approx(NLTK[sentences], abs=1e-11)


def slow_bleu(hypothesis, reference, order):
    """Compute the same from its definition, for one order, an n-gram at a time."""

    def share(n):
        mine = [hypothesis[i : i + n] for i in range(len(hypothesis) - n + 1)]
        left = [reference[i : i + n] for i in range(len(reference) - n + 1)]
        matched = 0
        for ngram in mine:
            if ngram in left:
                left.remove(ngram)
                matched += 1
        return matched, max(1, len(mine))

    shares = [share(n) for n in range(1, order + 1)]
    if shares[0][0] == 0:
        return 0.0
    filled, zeros = [], 0
    for matched, total in shares:
        value = matched / total
        if matched == 0 and len(hypothesis) > 1:
            zeros += 1
            value = 1 / (2**zeros * 5 / math.log(len(hypothesis))) / total
        filled.append(value)
    matched, total = share(5)
    filled.append(matched / total)
    before, product = filled[0] + 1, 1.0
    for n in range(order):
        before = (before + filled[n] + filled[n + 1]) / 3
        product *= before
    longer = len(reference) / len(hypothesis)
    return product ** (1 / order) * (math.exp(1 - longer) if longer > 1 else 1)


def test_scores_of_random_sentences_equal_a_slow_count():
    draw = random.Random(3)
    for _ in range(500):
        words = "abcd"[: draw.randint(1, 4)]
        hypothesis = [draw.choice(words) for _ in range(draw.randint(1, 9))]
        reference = [draw.choice(f"{words}e") for _ in range(draw.randint(1, 9))]
        want = [slow_bleu(hypothesis, reference, order) for order in ORDERS]
        assert sentence_bleu(hypothesis, reference) == pytest.approx(want, rel=1e-12)


def test_an_empty_response_scores_zero():
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


def test_scoring_needs_a_context():
    with pytest.raises(ScoreError, match="no contexts"):
        dialogue_scores([])
