"""Perplexity of given responses: every word and every end counts once."""

import pytest

from highrank_plugins.results.perplexity import response_perplexity
from highrank_plugins.results.scoring import ScoreError

RESPONSES = "oh yeah\nno\n"
SCORED = ["T-1\tno", "P-1\t-1.0000 -3.0000", "H-0\t-2\toh yeah", "P-0\t-4.5 -0.5 -1.0"]


@pytest.fixture
def perplexity(tmp_path):
    def perplexity(scored):
        (tmp_path / "scored").write_text("\n".join(scored) + "\n")
        (tmp_path / "responses").write_text(RESPONSES)
        return response_perplexity(tmp_path / "scored", tmp_path / "responses")

    return perplexity


def test_the_perplexity_is_two_to_the_power_of_the_mean_loss(perplexity):
    found = perplexity(SCORED)
    assert (found.value, found.signature) == (4.0, "tokens:5")


@pytest.mark.parametrize(
    ("scored", "message"),
    [
        (SCORED[:2], "scored: scores 1 responses, .*responses has 2"),
        ([*SCORED, "P-2\t-1.0"], "scored: scores 3 responses, .*responses has 2"),
        ([*SCORED[:3], "P-0\t-4.5 -0.5"], "2 scores for the 2 words and the end of .*responses:1"),
        (["P-1\t-1.0 nan", SCORED[3]], "a score is not finite"),
        (["P-1\t-1.0 -inf", SCORED[3]], "a score is not finite"),
    ],
)
def test_lost_and_broken_scores_are_errors(scored, message, perplexity):
    with pytest.raises(ScoreError, match=message):
        perplexity(scored)
