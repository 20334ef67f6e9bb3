"""Ranks, entropy and decay of spectra that can be checked by hand."""

import math

import pytest
import torch

from highrank_plugins.analysis.spectrum import (
    effective_rank,
    press_rank,
    press_tolerance,
    spectral_decay,
    spectral_entropy,
)


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_press_rank_counts_what_lies_above_the_tolerance():
    shape = (50, 49)  # √(50 + 49 + 1) / 2 = 5
    eps = torch.finfo(torch.float32).eps
    assert press_tolerance(2.0, shape, torch.float32) == pytest.approx(10 * eps, rel=1e-15)
    s = values(2.0, 1.0, 10.1 * eps, 10 * eps, 9.9 * eps)
    assert press_rank(s, shape, torch.float32) == 3
    assert press_rank(s.flip(0), shape, torch.float32) == 3
    assert press_rank(s, shape, torch.float64) == 5
    assert press_rank(values(0.0, 0.0), shape, torch.float64) == 0


@pytest.mark.parametrize(
    ("eps", "rank"), [(0.9, 1), (0.41, 1), (0.39, 2), (0.11, 2), (0.09, 3), (1e-6, 4), (1e-30, 5)]
)
def test_effective_rank_equals_values_computed_by_hand(eps, rank):
    s = values(0.6, 0.3, 0.0999, 0.0001, 1e-20).sqrt()  # squares sum to 1
    assert effective_rank(s, eps) == rank
    assert effective_rank(s.flip(0), eps) == rank
    assert effective_rank(torch.zeros(3), eps) == 0


def test_spectral_entropy_equals_values_computed_by_hand():
    assert spectral_entropy(torch.ones(7)) == pytest.approx(math.log(7), rel=1e-12)
    assert spectral_entropy(values(3.0, 0.0)) == 0
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert spectral_entropy(values(3.0, 1.0)) == pytest.approx(expected, rel=1e-12)


def test_decay_is_the_exponent_of_the_squares():
    index = torch.arange(1, 101, dtype=torch.float64)
    assert spectral_decay(5 * index**-0.7) == pytest.approx(1.4, rel=1e-12)
    bent = torch.cat([index[:50] ** -0.5, torch.zeros(50)])
    assert spectral_decay(bent, last=50) == pytest.approx(1.0, rel=1e-12)
    assert spectral_decay(torch.ones(4)) == pytest.approx(0, abs=1e-15)
