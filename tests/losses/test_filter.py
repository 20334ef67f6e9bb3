"""Gradient filtering: off by default, within its bound, and really skipping."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.heads import build_head
from highrank_plugins.losses.nll import FUSED
from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import run, with_reductions

CLASSES, TOKENS = 300, 16
RESOLUTION = {torch.float32: 2**-23, torch.bfloat16: 2**-7}
TARGET = torch.arange(TOKENS) % 5


def peaked(case, dtype=torch.float32):
    """Build a head that gives nearly all probability to the first classes."""
    head = case.build(classes=CLASSES, dtype=dtype)
    with torch.no_grad():
        head.bias.copy_(torch.linspace(0, -60, CLASSES))
    return head, make_features(TOKENS).to(dtype).requires_grad_()


filtering = pytest.mark.parametrize("impl", FUSED)


@pytest.mark.parametrize(("impl", "reduction"), with_reductions(FUSED))
@pytest.mark.parametrize("dtype", RESOLUTION, ids=str)
def test_filtered_gradients_stay_within_the_bound(case, reduction, dtype, impl):
    """What is left out is below the rounding of what is kept."""
    head, features = peaked(case, dtype)
    options = {"impl": impl, "reduction": reduction, "upstream": torch.tensor(1.0)}
    want = run(head, features, TARGET, **options)
    got = run(head, features, TARGET, filter_gradients=True, **options)
    assert got.values["loss"].equal(want.values["loss"])
    largest, contexts = 1.0, 2.0 * TOKENS * 3  # |P − 1| ≤ 1; |h| < 2, K components at most 4
    sums = max(contexts, head.weight.abs().sum().item())
    bound = RESOLUTION[dtype] * largest * sums + 1e-6
    for name, gradient in want.gradients.items():
        assert (got.gradients[name] - gradient).abs().max() <= bound, name


def test_a_component_of_small_weight_does_not_set_the_bound():
    """Its own gradients are as large as one over its weight before they are multiplied by that."""
    torch.manual_seed(0)
    head = build_head("mos", num_classes=50, feature_dim=8, components=2)
    with torch.no_grad():
        head.weight.mul_(100)
        head.prior.weight.copy_(torch.eye(2, 8) * torch.tensor([30.0, 0.0]).unsqueeze(1))
    features = make_features(TOKENS, feature_dim=8).float()
    features[:, 0] = 1.0  # one component has e^-30 of the weight
    features.requires_grad_()
    options = {"impl": "fused", "reduction": "sum", "label_smoothing": 0.1}
    want = run(head, features, TARGET, **options)
    got = run(head, features, TARGET, filter_gradients=True, **options)
    for name, gradient in want.gradients.items():
        assert (got.gradients[name] - gradient).abs().max() <= 1e-4, name


@filtering
def test_products_are_skipped(case, impl):
    head, features = peaked(case)

    def flops(**options):
        for _ in range(2):  # at its first use a kernel is tried
            with FlopCounterMode(display=False) as counter:
                run(head, features, TARGET, impl=impl, reduction="sum", **options)
        return counter.get_total_flops()

    assert flops(filter_gradients=True) < flops()
    untouched = torch.zeros_like(head.weight)
    got = run(head, features, TARGET, impl=impl, reduction="sum", filter_gradients=True)
    assert got.gradients["weight"][-50:].equal(untouched[-50:])


def test_filtering_changes_nothing_where_every_gradient_matters(case):
    head, features = case.build(classes=9), make_features(TOKENS).requires_grad_()
    want = run(head, features, TARGET, impl="fused", reduction="sum")
    got = run(head, features, TARGET, impl="fused", reduction="sum", filter_gradients=True)
    for name, gradient in want.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_exact_implementations_refuse_to_filter(impl):
    head, features = peaked(STRUCTURES[0])
    with pytest.raises(
        ValueError, match=r"filter_gradients .*: implementation .* fused or cpp or triton"
    ):
        head.nll(features, TARGET, impl=impl, filter_gradients=True)


def test_values_that_are_not_finite_stay_visible(case):
    """float16 overflow times 128 is found and undone; NaN stays NaN."""
    head, features = peaked(case, torch.float16)
    options = {"impl": "fused", "reduction": "sum", "weight": torch.full((TOKENS,), 1e3)}
    want = run(head, features, TARGET, **options)
    got = run(head, features, TARGET, filter_gradients=True, **options)
    torch.testing.assert_close(got.gradients, want.gradients, rtol=1e-2, atol=1e-2 * 1e3)
    assert got.gradients["weight"].norm() > 0.9 * want.gradients["weight"].norm() > 0
    broken = torch.full_like(features, torch.nan).detach().requires_grad_()
    got = run(head, broken, TARGET, filter_gradients=True, impl="fused", reduction="sum")
    assert got.gradients["weight"].isnan().any()


@pytest.mark.parametrize("frequent", [0, 9])
def test_few_classes_leave_nothing_to_filter(frequent):
    head = STRUCTURES[3].build(classes=9, frequent=frequent)
    for tokens in (0, 3):
        features = make_features(tokens).requires_grad_()
        got = run(head, features, TARGET[:tokens], impl="fused", reduction="sum",
                  filter_gradients=True)  # fmt: skip
        assert got.gradients["features"].shape == features.shape
