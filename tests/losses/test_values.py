"""The reference loss against the formula: NumPy's oracle, and fairseq's smoothing by hand."""

import math

import numpy as np
import pytest
import torch

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads import oracle
from tests.heads.cases import SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import CLASSES, FULL, IGNORED, TARGET, TOKENS, WEIGHT


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_losses_equal_those_of_the_oracle(case, smoothing, impl):
    head, features = case.build(classes=CLASSES), make_features(TOKENS)
    options = {**FULL, "z_loss": 0.0, "label_smoothing": smoothing, "impl": impl}
    log_p = head(features).detach().numpy()
    loss, nll = oracle.losses(log_p, TARGET.numpy(), WEIGHT.numpy(), smoothing, IGNORED)

    each = head.nll(features, TARGET, **options)
    np.testing.assert_allclose(each.loss.detach().numpy(), loss, rtol=1e-9)
    np.testing.assert_allclose(each.nll.numpy(), nll, rtol=1e-9)
    entropy = -(np.exp(log_p) * log_p).sum(-1) * (TARGET.numpy() != IGNORED)
    np.testing.assert_allclose(each.entropy.numpy(), entropy, rtol=1e-9)
    total = head.nll(features, TARGET, reduction="sum", **options)
    assert total.loss.shape == total.nll.shape == ()
    assert total.loss.item() == pytest.approx(loss.sum(), rel=1e-9)
    assert total.nll.item() == pytest.approx(nll.sum(), rel=1e-9)
    assert total.entropy.item() == pytest.approx(entropy.sum(), rel=1e-9)


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
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


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
def test_label_smoothing_equals_the_value_computed_by_hand(impl):
    """Probabilities 1/2, 1/4, 1/4 and smoothing 0.2: 0.1 for each wrong class, 0.8 - 0.1 + 0.1 for
    the right one."""
    head = SOFTMAX.build(classes=3, feature_dim=1)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([2.0, 1.0, 1.0]).log())
    features = make_features(1, feature_dim=1)
    out = head.nll(features, torch.tensor([0]), label_smoothing=0.2, impl=impl)
    assert out.loss.item() == pytest.approx((0.7 + 0.1) * math.log(2) + 0.2 * math.log(4))
    assert out.nll.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_entropy_and_z_loss_equal_values_computed_by_hand(case, impl):
    """Logits log 2, 0, 0 of each of K softmaxes: the log-sum-exp is log 4."""
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


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_accuracy_counts_correct_tokens(case, impl):
    head, features = case.build(classes=CLASSES), make_features(TOKENS)
    target = head(features).argmax(-1)
    target[1] = (target[1] + 1) % CLASSES  # a miss
    target[4] = CLASSES + 3  # ignored
    options = {"ignore_index": CLASSES + 3, "accuracy": True, "impl": impl}
    each = head.nll(features, target, **options).correct
    assert each.dtype == torch.bool
    assert each.tolist() == [n not in (1, 4) for n in range(TOKENS)]
    total = head.nll(features, target, reduction="sum", **options).correct
    assert total.shape == () and not total.is_floating_point() and int(total) == TOKENS - 2


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
def test_only_the_loss_carries_gradients(impl, reduction):
    head, features = STRUCTURES[2].build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    out = head.nll(features, TARGET, impl=impl, reduction=reduction)
    assert out.correct is None and out.entropy is None
    assert out.loss.requires_grad and not out.nll.requires_grad
    torch.testing.assert_close(out.loss.detach(), out.nll)


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize(
    "given, want",
    [("float64", "float64"), ("float32", "float32"), ("float16", "float32"),
     ("bfloat16", "float32")],
)  # fmt: skip
def test_results_are_at_least_float32(given, want, impl):
    given, want = getattr(torch, given), getattr(torch, want)
    for case in STRUCTURES:
        head, features = case.build(classes=CLASSES, dtype=given), make_features(TOKENS).to(given)
        out = head.nll(features, TARGET, impl=impl, label_smoothing=0.1, weight=WEIGHT)
        assert out.loss.dtype == out.nll.dtype == head(features).dtype == want
