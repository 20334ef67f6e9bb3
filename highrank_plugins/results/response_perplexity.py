"""Compute the perplexity of given responses from fairseq-generate --score-reference."""

import math
import re
from pathlib import Path

from highrank_plugins.common.score import Score
from highrank_plugins.results.scoring import ScoreError, read_lines

_SCORES = re.compile(r"P-(\d+)\t(.*)")


def response_perplexity(scored: Path, responses: Path) -> Score:
    """Return 2 to the mean −log₂ P of all words and ends of `responses`, a line each.

    Raises:
        ScoreError: other responses than these have scores, one has another number of them than
            words and an end, or a score is not finite.
    """
    lines = read_lines(responses)
    found: dict[int, list[float]] = {}
    for match in filter(None, map(_SCORES.fullmatch, read_lines(scored))):
        found[int(match[1])] = [float(score) for score in match[2].split()]
    if not lines or found.keys() != set(range(len(lines))):
        raise ScoreError(f"{scored}: scores {len(found)} responses, {responses} has {len(lines)}")
    for number, line in enumerate(lines):
        if len(found[number]) != len(line.split()) + 1:
            raise ScoreError(
                f"{scored}: {len(found[number])} scores for the {len(line.split())} words and the "
                f"end of {responses}:{number + 1}; generate with --score-reference on that text"
            )
    bits = [-score for scores in found.values() for score in scores]
    if not all(map(math.isfinite, bits)):
        raise ScoreError(f"{scored}: a score is not finite: the model is broken")
    return Score(round(2 ** (math.fsum(bits) / len(bits)), 3), f"tokens:{len(bits)}")
