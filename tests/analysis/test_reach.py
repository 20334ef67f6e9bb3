"""The reach of a vocabulary matrix, where another way to compute it is known."""

import itertools
import math

import numpy as np
import pytest
import torch

from highrank_plugins.analysis import unargmaxable_words
from highrank_plugins.analysis.unargmaxable_words import reach


def random(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def permutation(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def reach_where(leads, order):
    """Return the largest m for which each of the first 1 … m words leads."""
    return next((m for m in range(len(order)) if not leads(set(order[: m + 1]))), len(order))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 6])
def test_on_the_moment_curve_the_changes_of_sign_decide(dim, seed):
    # a polynomial of this degree is positive on a set and negative elsewhere, if and only if
    # neighbours change sides at most `dim` times
    count = 11
    points = torch.linspace(-1, 1, count, dtype=torch.float64)
    weight = torch.stack([points**k for k in range(1, dim + 1)], 1)
    order = permutation(count, seed)[:8]

    def leads(chosen):
        sides = [index in chosen for index in range(count)]
        return sum(a != b for a, b in itertools.pairwise(sides)) <= dim

    expected = reach_where(leads, order)
    levels = -random(8, seed=seed).abs().cumsum(0)
    sets, exact = reach(weight, None, order, levels)
    assert sets == expected
    # any ⌊d / 2⌋ words are a face of the cyclic polytope, and then may have any probabilities
    assert min(dim // 2, 8) <= exact <= sets


def test_isolated_words_of_a_cyclic_polytope_stop_at_half_the_dimension():
    points = torch.linspace(-1, 1, 13, dtype=torch.float64)
    for dim in (2, 3, 4, 5, 6):
        weight = torch.stack([points**k for k in range(1, dim + 1)], 1)
        assert reach(weight, None, [1, 3, 5, 7, 9]) == (dim // 2, None)


@pytest.mark.parametrize("bound", [None, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_lines_agree_with_all_their_intervals(seed, bound):
    # one dimension and biases: between the crossings of two lines no order changes
    weight, bias = random(9, 1, seed=seed), random(9, seed=seed + 100)
    slope, height = weight[:, 0].numpy(), bias.numpy()
    first, second = np.triu_indices(9, 1)
    crossings = np.sort((height[second] - height[first]) / (slope[first] - slope[second]))
    ends = [-bound, bound] if bound else [crossings[0] - 1, crossings[-1] + 1]
    inside = [c for c in crossings if ends[0] < c < ends[1]]
    edges = np.array([ends[0], *inside, ends[1]])
    orders = [np.argsort(-(slope * h + height)) for h in (edges[1:] + edges[:-1]) / 2]
    order = orders[seed % len(orders)].tolist()
    order[1], order[3] = order[3], order[1]
    order = order[:6]

    def leads(chosen):
        return any(set(one[: len(chosen)].tolist()) == chosen for one in orders)

    levels = -random(6, seed=seed).abs().cumsum(0)
    sets, exact = reach(weight, bias, order, levels, bound)
    assert sets == reach_where(leads, order)
    # two logits with a given difference have one h
    (a, b), gap = order[:2], float(levels[0] - levels[1])
    h = (gap - height[a] + height[b]) / (slope[a] - slope[b])
    rest = np.delete(slope * h + height, [a, b])
    two = rest.max() < slope[b] * h + height[b] and abs(h) <= (bound or math.inf)
    assert (exact >= 2) == two and exact <= 2
    assert (exact >= 1) == leads({order[0]})


def test_lines_reach_both_probabilities():
    weight, bias = torch.tensor([[1.0], [0.0], [-1.0]]), torch.tensor([0.0, 0.0, -9.0])
    assert reach(weight, bias, [0, 1], torch.tensor([-1.0, -1.5])) == (2, 2)
    # w·h = 20 for the first, 0 for the second, and −29 for the third
    assert reach(weight, bias, [0, 1], torch.tensor([-1.0, -21.0])) == (2, 2)
    # the first two differ by 20 only where the third is above the second
    assert reach(weight, -bias, [0, 1], torch.tensor([-1.0, -1.5])) == (2, 1)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_words_of_a_feature_vector_are_reached_with_their_probabilities(scale):
    weight, bias, feature = scale * random(200, 12), random(200, seed=2), random(12, seed=3)
    log_probs = (weight @ feature / scale + bias).log_softmax(0)
    levels, order = log_probs.topk(40)
    assert reach(weight, bias, order.tolist(), levels) == (40, 40)


def test_a_set_may_lead_although_a_smaller_one_cannot():
    # rows 1, 2, 3 on a line: only the ends can be first
    weight = torch.tensor([[1.0], [2.0], [3.0]])
    assert reach(weight, None, [1, 2]) == (0, None)
    assert unargmaxable_words.top_margin(weight.double(), torch.zeros(3).double(), [1, 2]) > 0.1


@pytest.mark.parametrize("levels", [True, False])
def test_cutting_planes_change_no_answer(levels, monkeypatch):
    weight, bias = random(600, 10), random(600, seed=4)
    given = -random(20, seed=5).abs().cumsum(0) if levels else None
    found = [reach(weight, bias, permutation(600, seed)[:20], given) for seed in range(4)]
    monkeypatch.setattr(unargmaxable_words, "STEP", 1000)
    every = [reach(weight, bias, permutation(600, seed)[:20], given) for seed in range(4)]
    assert found == every and len({*found}) > 1
    monkeypatch.setattr(unargmaxable_words, "STEP", 1)
    assert found == [reach(weight, bias, permutation(600, n)[:20], given) for n in range(4)]


def test_few_linear_programs_have_few_constraints(monkeypatch):
    sizes, solve = [], unargmaxable_words._solved

    def noted(own, their, *more):
        sizes.append(len(their))
        return solve(own, their, *more)

    monkeypatch.setattr(unargmaxable_words, "_solved", noted)
    sets, _ = reach(random(3000, 16), None, permutation(3000, 1)[:20])
    assert 1 <= sets < 20 and max(sizes) < 600


def test_few_programs_are_solved(monkeypatch):
    weight, feature, asked = random(200, 12), random(12, seed=3), []
    solve = unargmaxable_words.top_margin

    def noted(wide, offsets, chosen, *more):
        asked.append(len(chosen))
        return solve(wide, offsets, chosen, *more)

    monkeypatch.setattr(unargmaxable_words, "top_margin", noted)
    levels, order = (weight @ feature).topk(20)
    assert reach(weight, None, order.tolist(), levels) == (20, 20)
    assert asked == [1, 2, 4, 8, 14, 17, 19, 20]
    assert reach(weight, None, order.tolist())[0] == 20  # also with differences of its own
