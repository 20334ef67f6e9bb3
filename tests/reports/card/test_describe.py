"""The head on a card has all its options, and their learnt values."""

import pytest

from highrank_plugins.heads import build_head
from highrank_plugins.heads.pointwise import build_pointwise
from highrank_plugins.reports.card.describe import describe_head

SIZES = {"num_classes": 9, "feature_dim": 4}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gss", {"c": -2.0, "k": 3.0, "learn": False}),
        ("gss", {"c": -2.0, "k": 3.0, "learn": True}),
        ("plif", {"knots": 8, "bound": 2.0, "freeze": True}),
        ("monotone_mlp", {"units": 4, "bound": 5.0}),
    ],
)
def test_options_of_the_function_are_shown(name, options):
    head = build_head("softmax", **SIZES, pointwise=build_pointwise(name, **options))
    said = describe_head(head)
    for option, value in options.items():
        assert said[f"{name} {option}"] == pytest.approx(value), option


def test_biases_of_gates_are_shown():
    head = build_head("mixtape", **SIZES, components=2, gate_biases="full")
    assert describe_head(head)["gate_biases"] == "full"
