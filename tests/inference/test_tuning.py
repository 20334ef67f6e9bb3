"""Choosing among points on one text, for the use on another."""

import pytest

from highrank_plugins.inference.adaptive_evaluation import Outcome, points_of, tune_and_evaluate

VALUES = {"lr": [0.1, 0.2], "lambda": [0.0, 0.5]}
VALID = ("valid", None)
POINTS = points_of(VALUES, VALID, str)


def evaluate_with(best, asked, broken=()):
    """Evaluate with the distance to `best` as the nll per token."""

    def evaluate(split, tokens, points):
        asked.append((split, tokens, list(points)))
        return [
            Outcome(point, 0, None, "NaN")
            if point in broken
            else Outcome(point, 10, 10 * sum(abs(point[k] - best[k]) for k in best))
            for point in points
        ]

    return evaluate


def test_a_perplexity_beyond_the_range_of_floats_is_infinite():
    assert str(Outcome({"lr": 9.0}, 1, 800.0)) == "lr 9.0: perplexity inf"


def test_points_are_all_combinations_in_order():
    assert POINTS == [
        {"lr": 0.1, "lambda": 0.0},
        {"lr": 0.1, "lambda": 0.5},
        {"lr": 0.2, "lambda": 0.0},
        {"lr": 0.2, "lambda": 0.5},
    ]
    with pytest.raises(ValueError, match="4 combinations of values: add --grid"):
        points_of(VALUES, None, str)
    assert points_of({"lr": [0.1]}, None, str) == [{"lr": 0.1}]


def test_the_best_point_of_the_search_is_used():
    asked, said = [], []
    evaluate = evaluate_with(POINTS[2], asked)
    outcome, tried = tune_and_evaluate(evaluate, POINTS, "test", ("valid", 30), said.append)
    assert asked == [("valid", 30, POINTS), ("test", None, [POINTS[2]])]
    assert outcome.point == POINTS[2]
    assert outcome.metrics == {"perplexity": 1.0, "nll": 0.0}
    assert [o.point for o in tried] == POINTS
    assert said[0] == "valid, lr 0.1, lambda 0.0: perplexity 1.11"
    assert said[-1] == "test, lr 0.2, lambda 0.0: perplexity 1.00 over 10 tokens"
    asked.clear()
    _, tried = tune_and_evaluate(evaluate, POINTS[1:2], "test", None, str)
    assert asked == [("test", None, [POINTS[1]])] and tried == []


def test_failing_points_are_skipped():
    said = []
    evaluate = evaluate_with(POINTS[2], [], broken=[POINTS[2]])
    outcome, tried = tune_and_evaluate(evaluate, POINTS, "test", VALID, said.append)
    assert outcome.point == POINTS[0]
    assert tried[2].point == POINTS[2] and tried[2].problem == "NaN"
    assert tried[2].metrics == {"perplexity": None, "nll": None} and tried[2].tokens == 0
    assert "valid, lr 0.2, lambda 0.0: NaN" in said


@pytest.mark.parametrize("search", [None, VALID])
def test_failure_at_every_point_is_an_error(search):
    evaluate = evaluate_with(POINTS[0], [], broken=POINTS)
    with pytest.raises(FloatingPointError, match=r"lr 0.1, lambda 0.0: NaN"):
        tune_and_evaluate(evaluate, POINTS[:1], "test", search, str)


@pytest.mark.parametrize(("name", "option"), [("lamb", "--lambda"), ("window", "--window")])
def test_errors_name_the_option(name, option):
    def check(point):
        raise ValueError(f"{name} must be 1")

    with pytest.raises(ValueError, match=f"^{option} must be 1$"):
        points_of(VALUES, VALID, check)
