"""Points inside a polygon are never the farthest one; the linear program finds them all."""

import pytest
import torch
from scipy.spatial import ConvexHull

from highrank_plugins.analysis import unargmaxable_words
from highrank_plugins.analysis.unargmaxable_words import unargmaxable, unargmaxable_classes
from highrank_plugins.heads import build_head

CORNERS = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])


def random(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def hull_says(points):
    """Without biases a class can win if and only if its point is a corner of the convex hull."""
    return sorted(set(range(len(points))) - set(ConvexHull(points.numpy()).vertices.tolist()))


def test_a_point_inside_a_polygon_is_found():
    weight = torch.cat([CORNERS, torch.tensor([[0.5, 0.3]])])
    assert unargmaxable(weight).tolist() == [4]
    weight[4] = torch.tensor([1.5, 1.0])
    assert unargmaxable(weight).tolist() == []


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_the_convex_hull_agrees(dim):
    weight = random(60, dim)
    if dim == 1:
        expected = sorted(set(range(60)) - {int(weight.argmin()), int(weight.argmax())})
    else:
        expected = hull_says(weight)
    found = unargmaxable(weight)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_margins_equal_values_computed_by_hand():
    # rows ±2 and 0, biases 0, 0, 1: the last leads by 1 at h = 0, in units of 1 (biases)
    weight, bias = torch.tensor([[2.0], [-2.0], [0.0]]).double(), torch.tensor([0, 0, 1.0]).double()
    assert unargmaxable_words.top_margin(weight, bias, [2]) == pytest.approx(1.0)
    assert unargmaxable_words.top_margin(weight, bias, [0]) == pytest.approx(0.5)  # x = 1, t = 0
    assert unargmaxable_words.top_margin(weight, -bias, [2]) == pytest.approx(0.0)
    # within |h| ≤ 1/4: h = 1/4, 2 h − 1 in units of 4, the longest difference
    assert unargmaxable_words.top_margin(weight, bias, [0], bound=0.25) == pytest.approx(-0.125)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_does_not_matter(scale):
    weight, bias = random(40, 3, seed=2), random(40, seed=3)
    expected = unargmaxable(weight, bias).tolist()
    assert len(expected) > 5
    assert unargmaxable(scale * weight, bias).tolist() == expected
    assert unargmaxable(weight, scale * bias).tolist() == expected


def test_biases_decide_where_directions_do_not():
    # above the other two everywhere but near 0, where only its bias can lift it
    weight = torch.tensor([[1.0], [-1.0], [0.0]])
    assert unargmaxable(weight).tolist() == [2]
    assert unargmaxable(weight, torch.tensor([0.0, 0.0, 0.1])).tolist() == []
    assert unargmaxable(weight, torch.tensor([0.0, 0.0, -0.1])).tolist() == [2]


def test_a_bias_acts_as_one_more_coordinate():
    # with biases: the upper envelope of planes over R², by a fine grid of directions and lengths
    weight, bias = random(12, 2, seed=3), random(12, seed=4)
    grid = torch.cartesian_prod(*[torch.linspace(-40, 40, 801, dtype=torch.float64)] * 2)
    winners = set((grid @ weight.t() + bias).argmax(1).tolist())
    assert unargmaxable(weight, bias).tolist() == sorted(set(range(12)) - winners)


def test_a_bound_on_features_rules_out_more_words():
    weight, bias = torch.tensor([[1.0], [0.0]]), torch.tensor([-2.0, 0.0])
    assert unargmaxable(weight, bias).tolist() == []
    assert unargmaxable(weight, bias, bound=1.0).tolist() == [0]
    assert unargmaxable(weight, bias, bound=3.0).tolist() == []


def test_equal_rows_never_win_alone():
    weight = torch.cat([CORNERS, CORNERS[1:2]])
    assert unargmaxable(weight).tolist() == [1, 4]
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5])
    assert unargmaxable(weight, bias).tolist() == [1]


@pytest.fixture
def solved(monkeypatch):
    """Record the classes that went to HiGHS."""
    classes = []
    solve = unargmaxable_words.top_margin

    def noted(weight, offsets, c, bound):
        classes.append(c)
        return solve(weight, offsets, c, bound)

    monkeypatch.setattr(unargmaxable_words, "top_margin", noted)
    return classes


def test_searches_save_linear_programs(solved):
    weight = random(200, 20) - random(20, seed=2)
    assert unargmaxable(weight).tolist() == []
    assert not solved


@pytest.mark.parametrize("steps", [0, 1, 100])
@pytest.mark.parametrize("bound", [None, 0.5])
def test_searches_change_no_answer(steps, bound, monkeypatch):
    weight, bias = random(50, 3, seed=5), random(50, seed=6)
    expected = unargmaxable(weight, bias, bound=bound)
    assert 5 < len(expected) < 45
    monkeypatch.setattr(unargmaxable_words, "STEPS", steps)
    assert torch.equal(unargmaxable(weight, bias, bound=bound), expected)


def increasing_heads():
    return ["identity", "sigsoftmax", "gss", "plif", "monotone_mlp", "softcap", "sigmoid_cap"]


@pytest.mark.parametrize("pointwise", increasing_heads())
@pytest.mark.parametrize("bias", [True, False])
def test_any_increasing_function_leaves_the_same_words_unargmaxable(pointwise, bias):
    torch.manual_seed(1)
    head = build_head("softmax", num_classes=30, feature_dim=3, bias=bias, pointwise=pointwise)
    if bias:
        head.bias.data.normal_()
    found = unargmaxable_classes(head)
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
