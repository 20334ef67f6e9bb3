"""The published numbers are those that were compared with the papers, in all places."""

import hashlib
import re

import pytest
import yaml

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import FILE
from tests.recipes.running import RECIPES
from tests.results.entries import published


@pytest.mark.parametrize("task", read_tree(FILE).values)
def test_scores_in_the_comments_of_configurations_are_the_published_ones(task):
    """Look for numbers such as 58.08 in the comments before the first key."""
    known: dict[str, set[float]] = {}
    for entry in published(task):
        printed = re.findall(r"\d+\.\d+", " ".join(entry.errata.values()))
        numbers = [*entry.scores.values(), *entry.deviations.values(), *map(float, printed)]
        known.setdefault(str(entry.conf), set()).update(numbers)
    for conf in known.keys() - {"None"}:
        text = (RECIPES / task / "conf" / f"{conf}.yaml").read_text(encoding="utf-8")
        heading = " ".join(re.findall(r"(?m)^#.*", text))
        for number in re.findall(r"(?<![\w.])\d\d\.\d\d?(?![\d.M%])", heading):
            assert float(number) in known[conf], (conf, number)


def test_every_kind_of_score_is_published_somewhere():
    tasks = read_tree(FILE).values
    used = {kind for task in tasks for entry in published(task) for kind in entry.scores}
    assert used == set(KINDS)


def test_the_numbers_are_those_that_were_compared_with_the_papers():
    """After a change, compare the cell with its table and its errata, then print this again.

    What follows from other cells was recomputed once: p-values, ranks of a softmax, parameters,
    perplexities with the right count of tokens, gains, times, slowdowns and counts of knots.
    """
    text = yaml.safe_dump(read_tree(FILE).values, sort_keys=True, allow_unicode=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4c76fa363f2f615c"
