"""Losses against formulas: NumPy's oracle, torch's cross-entropy, and numbers by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads import oracle
from tests.heads.cases import SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import CLASSES, FULL, IGNORED, TARGET, TOKENS, WEIGHT, inputs, run

every_choice = pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])


@every_choice
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_losses_equal_those_of_the_oracle(case, smoothing, impl):
    head, features = inputs(case)
    options = {**FULL, "z_loss": 0.0, "label_smoothing": smoothing, "impl": impl}
    log_p = head(features).detach().numpy()
    counted = TARGET.numpy() != IGNORED
    loss, nll = oracle.losses(log_p, TARGET.numpy(), WEIGHT.numpy(), smoothing, IGNORED)
    want = {"loss": loss, "nll": nll, "entropy": -(np.exp(log_p) * log_p).sum(-1) * counted}
    weights = {"loss": (WEIGHT.numpy() * counted).sum()}
    for reduction in ("none", "sum", "mean"):
        found = head.nll(features, TARGET, reduction=reduction, **options)
        for name, expected in want.items():
            if reduction != "none":
                tokens = weights.get(name, counted.sum()) if reduction == "mean" else 1
                expected = expected.sum() / tokens
            got = getattr(found, name).detach().numpy()
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-9)


@every_choice
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_mean_equals_torchs(impl, weighted):
    """torch weights a token by its class, and ignores −100."""
    head, features = inputs(SOFTMAX)
    target = TARGET.masked_fill(TARGET == IGNORED, -100)
    per_class = torch.linspace(0.2, 3, CLASSES).double() if weighted else None
    weight = None if per_class is None else per_class[target.clamp(min=0)]
    logits = F.linear(features, head.weight, head.bias)
    want = F.cross_entropy(logits, target, weight=per_class, ignore_index=-100)
    got = head.nll(features, target, weight=weight, ignore_index=-100, reduction="mean", impl=impl)
    torch.testing.assert_close(got.loss, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(got.nll, F.cross_entropy(logits, target), rtol=1e-12, atol=0)


NOTHING = {"ignored": (TOKENS, None), "no tokens": (0, None)}
NOTHING["weights of 0"] = (TOKENS, torch.zeros(TOKENS))


@every_choice
@pytest.mark.parametrize("nothing", NOTHING)
def test_a_mean_of_nothing_is_nan_with_gradients_of_zero(case, nothing, impl):
    """Have gradients of 0, as in torch: NaN would spoil the sums of other batches."""
    tokens, weight = NOTHING[nothing]
    head, features = inputs(case, tokens)
    target = TARGET[:tokens] if weight is not None else torch.full((tokens,), -100)
    assert weight is not None or F.cross_entropy(torch.zeros(tokens, CLASSES), target).isnan()
    got = run(head, features, target, impl=impl, reduction="mean", ignore_index=-100,
              weight=weight, accuracy=True, entropy=True)  # fmt: skip
    undefined = ["loss"] if weight is not None else ["loss", "nll", "correct", "entropy"]
    assert all(got.values[name].isnan() for name in undefined)
    assert got.gradients and not any(gradient.any() for gradient in got.gradients.values())


def test_a_call_with_a_target_is_nll(case):
    """Hooks see it, such as those of FSDP2."""
    head, features, seen = case.build(classes=CLASSES), make_features(TOKENS), []
    head.register_forward_hook(lambda module, inputs, out: seen.append(out))
    gradients = []
    for call in (head, head.nll):
        head.zero_grad()
        for options in (FULL, FULL | {"reduction": "sum"}):
            call(features, TARGET, **options).loss.sum().backward()
        gradients.append([p.grad.clone() for p in head.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(seen[-1], head.nll(features, TARGET, **options), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(head(features, target=None), head.log_probs(features))
    compute = head.logits if head.has_logits else head.log_probs
    assert torch.equal(head(features, scores=True), compute(features))


@every_choice
def test_values_equal_those_computed_by_hand(case, impl):
    """Logits log 2, 0, 0 of each of K softmaxes: the log-sum-exp is log 4, P 1/2, 1/4 and 1/4.

    Smoothing 0.2 is 0.1 for each wrong class, and 0.8 − 0.1 + 0.1 for the right one.
    """
    head = case.build(classes=3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([2.0, 1.0, 1.0]).log())
    target = torch.tensor([0, 2])
    out = head.nll(make_features(2), target, entropy=True, z_loss=0.1, impl=impl)
    softmaxes = head.components if case.head == "mos" else 1
    penalty = 0.1 * softmaxes * math.log(4) ** 2
    assert out.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert (out.loss - out.nll).tolist() == pytest.approx([penalty] * 2)
    out = head.nll(make_features(1), torch.tensor([0]), label_smoothing=0.2, impl=impl)
    assert out.loss.item() == pytest.approx((0.7 + 0.1) * math.log(2) + 0.2 * math.log(4))
    assert out.nll.item() == pytest.approx(math.log(2))


@every_choice
def test_accuracy_counts_correct_tokens(case, impl):
    head, features = inputs(case)
    target = head(features).argmax(-1)
    target[1] = (target[1] + 1) % CLASSES  # a miss
    target[4] = CLASSES + 3  # ignored
    options = {"ignore_index": CLASSES + 3, "accuracy": True, "impl": impl}
    each = head.nll(features, target, **options).correct
    assert each.dtype == torch.bool
    assert each.tolist() == [n not in (1, 4) for n in range(TOKENS)]
    total = head.nll(features, target, reduction="sum", **options).correct
    assert total.shape == () and not total.is_floating_point() and int(total) == TOKENS - 2


@every_choice
def test_only_the_loss_carries_gradients(impl, reduction):
    head, features = inputs(STRUCTURES[2])
    out = head.nll(features, TARGET, impl=impl, reduction=reduction)
    assert out.correct is None and out.entropy is None
    assert out.loss.requires_grad and not out.nll.requires_grad
    torch.testing.assert_close(out.loss.detach(), out.nll)


@every_choice
@pytest.mark.parametrize("given", ["float64", "float32", "float16", "bfloat16"])
def test_results_are_at_least_float32(given, impl):
    given = getattr(torch, given)
    want = torch.promote_types(given, torch.float32)
    for case in STRUCTURES:
        head, features = case.build(classes=CLASSES, dtype=given), make_features(TOKENS).to(given)
        out = head.nll(features, TARGET, impl=impl, label_smoothing=0.1, weight=WEIGHT)
        assert out.loss.dtype == out.nll.dtype == head(features).dtype == want


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_mean_keeps_small_gradients_in_half_precision(dtype, impl):
    """Gradients of a mean are no smaller before they are cast than those of a sum."""
    head = SOFTMAX.build(classes=CLASSES, dtype=dtype)
    features, target = make_features(600).to(dtype).requires_grad_(), torch.arange(600) % CLASSES
    total = run(head, features, target, impl=impl, reduction="sum", upstream=torch.tensor(1.0))
    mean = run(head, features, target, impl=impl, reduction="mean", upstream=torch.tensor(600.0))
    torch.testing.assert_close(mean.gradients, total.gradients)
