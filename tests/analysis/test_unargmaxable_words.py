"""Words that no feature puts on top, and sets that some do, where they are known otherwise."""

import itertools

import pytest
import torch
from scipy.spatial import ConvexHull

from highrank_plugins.analysis import unargmaxable_words
from highrank_plugins.analysis.unargmaxable_words import reach, top_margin, unargmaxable
from highrank_plugins.heads import build_head
from tests.analysis.test_spectrum import random

CORNERS = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_without_biases_the_corners_of_the_convex_hull_can_win(dim):
    weight = random(60, dim)
    ends = {int(weight.argmin()), int(weight.argmax())}
    corners = ends if dim == 1 else {*ConvexHull(weight.numpy()).vertices.tolist()}
    found = unargmaxable(weight)
    assert found.dtype == torch.int64
    assert found.tolist() == sorted({*range(60)} - corners)


def test_small_layers_equal_what_is_computed_by_hand():
    # rows ±2 and 0, biases 0, 0, 1: the last leads by 1 at h = 0, in units of 1 (biases)
    weight, bias = torch.tensor([[2.0], [-2.0], [0.0]]).double(), torch.tensor([0, 0, 1.0]).double()
    assert top_margin(weight, bias, [2]) == pytest.approx(1.0)
    assert top_margin(weight, bias, [0]) == pytest.approx(0.5)  # x = 1, t = 0
    assert top_margin(weight, -bias, [2]) == pytest.approx(0.0)
    # equal rows never win alone
    weight = torch.cat([CORNERS, CORNERS[1:2]])
    assert unargmaxable(weight).tolist() == [1, 4]
    assert unargmaxable(weight, torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5])).tolist() == [1]
    # a set may lead although a smaller one cannot: of rows on a line only the ends can be first
    weight = torch.tensor([[1.0], [2.0], [3.0]])
    assert reach(weight, None, [1, 2]) == (0, None)
    assert top_margin(weight.double(), torch.zeros(3).double(), [1, 2]) > 0.1
    weight, bias = torch.tensor([[1.0], [0.0], [-1.0]]), torch.tensor([0.0, 0.0, -9.0])
    assert reach(weight, bias, [0, 1], torch.tensor([-1.0, -1.5])) == (2, 2)
    # w·h = 20 for the first, 0 for the second, and −29 for the third
    assert reach(weight, bias, [0, 1], torch.tensor([-1.0, -21.0])) == (2, 2)
    # the first two differ by 20 only where the third is above the second
    assert reach(weight, -bias, [0, 1], torch.tensor([-1.0, -1.5])) == (2, 1)


def test_a_bias_acts_as_one_more_coordinate_and_the_scale_does_not_matter():
    # with biases: the upper envelope of planes over R², by a fine grid of directions and lengths
    weight, bias = random(12, 2, seed=3), random(12, seed=4)
    grid = torch.cartesian_prod(*[torch.linspace(-40, 40, 801, dtype=torch.float64)] * 2)
    winners = set((grid @ weight.t() + bias).argmax(1).tolist())
    assert unargmaxable(weight, bias).tolist() == sorted(set(range(12)) - winners)
    weight, bias = random(40, 3, seed=2), random(40, seed=3)
    expected = unargmaxable(weight, bias).tolist()
    assert len(expected) > 5
    for scale in (1e-6, 1e6):
        assert unargmaxable(scale * weight, bias).tolist() == expected
        assert unargmaxable(weight, scale * bias).tolist() == expected


INCREASING = ["identity", "sigsoftmax", "gss", "plif", "monotone_mlp", "softcap", "sigmoid_cap"]


@pytest.mark.parametrize("pointwise", INCREASING)
@pytest.mark.parametrize("bias", [True, False])
def test_any_increasing_function_leaves_the_same_words_unargmaxable(pointwise, bias):
    torch.manual_seed(1)
    head = build_head("softmax", num_classes=30, feature_dim=3, bias=bias, pointwise=pointwise)
    if bias:
        head.bias.data.normal_()
    found = unargmaxable_words.unargmaxable_classes(head)
    expected = unargmaxable(head.weight.detach(), head.bias.detach() if bias else None)
    assert found.tolist() == expected.tolist() != []
    winners = head.double()(100 * random(500, 3)).argmax(-1)
    assert not set(winners.tolist()) & set(found.tolist())


def test_a_solver_that_gives_up_is_an_error(monkeypatch):
    import scipy.optimize

    class NoAnswer:
        x, status, message = None, 1, "time limit reached"

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *args, **options: NoAnswer())
    with pytest.raises(FloatingPointError, match="the solver HiGHS found no answer: time limit"):
        unargmaxable(torch.cat([CORNERS, torch.zeros(1, 2)]))


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


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_words_of_a_feature_vector_are_reached_with_their_probabilities(scale):
    weight, bias, feature = scale * random(200, 12), random(200, seed=2), random(12, seed=3)
    log_probs = (weight @ feature / scale + bias).log_softmax(0)
    levels, order = log_probs.topk(40)
    assert reach(weight, bias, order.tolist(), levels) == (40, 40)
    assert reach(weight, bias, order.tolist()) == (40, None)


def test_searches_and_cutting_planes_change_no_answer(monkeypatch):
    weight, bias = random(50, 3, seed=5), random(50, seed=6)
    expected = unargmaxable(weight, bias)
    assert 5 < len(expected) < 45
    for steps in (0, 1):
        monkeypatch.setattr(unargmaxable_words, "STEPS", steps)
        assert torch.equal(unargmaxable(weight, bias), expected)
    weight, bias = random(600, 10), random(600, seed=4)
    for given in (None, -random(20, seed=5).abs().cumsum(0)):
        found = []
        for step in (4, 1000, 1):
            monkeypatch.setattr(unargmaxable_words, "STEP", step)
            orders = [permutation(600, seed)[:20] for seed in range(4)]
            found.append([reach(weight, bias, order, given) for order in orders])
        assert found[0] == found[1] == found[2] and len({*found[0]}) > 1
