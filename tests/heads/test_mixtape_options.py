"""Mixtape's options on a command line: a ratio of the vocabulary, and the paper's biases."""

import pytest

from highrank_plugins.heads.mixtape_options import number_of_frequent


@pytest.mark.parametrize(
    ("ratio", "classes", "multiple", "frequent"),
    [
        (0.1, 32768, 64, 3264),  # 3276
        (0.1, 50257, 64, 5056),  # 5025
        (0.5, 32768, 64, 16384),
        (0.1, 3000, 64, 320),  # 300
        (0.1, 3000, 1, 300),
        (0.1, 630, 64, 63),  # rounding would change the share too much
        (0.1, 640, 64, 64),
        (1.0, 10001, 64, 10001),  # all
        (0.999, 10001, 64, 9984),  # 9990
        (0.96, 100, 64, 96),  # 128 would be too many
        (0.0, 10000, 64, 0),
    ],
)
def test_the_number_of_frequent_classes_is_rounded(ratio, classes, multiple, frequent):
    assert number_of_frequent(ratio, multiple, classes) == frequent
