"""Reduction "mean": over the tokens that are not ignored, as in torch's cross_entropy."""

import pytest
import torch
from torch.nn import functional as F

from tests.heads.cases import SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import (
    CLASSES,
    FULL,
    IGNORED,
    ONCE,
    RUNNABLE,
    TARGET,
    TOKENS,
    WEIGHT,
    assert_same,
    memory_for,
    run,
)

every_implementation = pytest.mark.parametrize("impl", ["reference", *ONCE])
CALLS = [{}, {"ignore_index": IGNORED}, {"weight": WEIGHT, "ignore_index": IGNORED}, FULL]


@every_implementation
@pytest.mark.parametrize("options", CALLS, ids=lambda options: "+".join(options) or "nothing")
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_mean_has_the_values_and_gradients_of_the_reference(case, options, impl):
    """Compare with the reference loss per token, whose mean is taken by hand."""
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    ignored = options.get("ignore_index", -100)
    counted = ignored != TARGET
    weights = counted * options.get("weight", torch.ones(TOKENS).double())
    upstream = torch.tensor(-1.3).double()
    want = run(head, features, TARGET, impl="reference", reduction="none",
               upstream=(upstream / weights.sum()).expand(TOKENS), **options)  # fmt: skip
    want.values["loss"] = want.values["loss"].sum() / weights.sum()
    for name in want.values.keys() - {"loss"}:
        want.values[name] = want.values[name].double().sum() / counted.sum()
    memory = None if impl == "reference" else memory_for(head, 3, impl)
    got = run(head, features, TARGET, impl=impl, reduction="mean", memory=memory,
              upstream=upstream, **options)  # fmt: skip
    assert_same(got, want)


@every_implementation
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_mean_equals_torchs(impl, weighted):
    """torch weights a token by its class, and ignores −100."""
    head, features = SOFTMAX.build(classes=CLASSES), make_features(TOKENS)
    target = TARGET.masked_fill(TARGET == IGNORED, -100)
    per_class = torch.linspace(0.2, 3, CLASSES).double() if weighted else None
    weight = None if per_class is None else per_class[target.clamp(min=0)]
    logits = F.linear(features, head.weight, head.bias)
    want = F.cross_entropy(logits, target, weight=per_class, ignore_index=-100)
    got = head.nll(features, target, weight=weight, ignore_index=-100, reduction="mean", impl=impl)
    torch.testing.assert_close(got.loss, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(got.nll, F.cross_entropy(logits, target), rtol=1e-12, atol=0)


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_mean_without_tokens_is_nan_as_in_torch(tokens):
    head, target = SOFTMAX.build(classes=CLASSES), torch.full((tokens,), -100)
    logits = torch.zeros(tokens, CLASSES)
    assert F.cross_entropy(logits, target).isnan()
    for impl in RUNNABLE:
        out = head.nll(make_features(tokens), target, ignore_index=-100, reduction="mean",
                       impl=impl, accuracy=True, entropy=True)  # fmt: skip
        assert all(value.isnan() for value in out)


@every_implementation
@pytest.mark.parametrize("weight", [None, torch.zeros(TOKENS)], ids=["ignored", "weights_of_0"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_mean_of_nothing_has_gradients_of_zero(case, weight, impl):
    """torch has zeros where all tokens are ignored. NaN would spoil the sums of other batches."""
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    target = torch.full_like(TARGET, -100) if weight is None else TARGET
    got = run(head, features, target, impl=impl, reduction="mean", ignore_index=-100,
              weight=weight, upstream=torch.tensor(-1.3).double())  # fmt: skip
    assert got.values["loss"].isnan()
    assert got.gradients
    for name, gradient in got.gradients.items():
        assert not gradient.any(), name


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_small_gradients(dtype, impl):
    """Gradients of a mean are no smaller before they are cast than those of a sum."""
    head = SOFTMAX.build(classes=CLASSES, dtype=dtype)
    features, target = make_features(600).to(dtype).requires_grad_(), torch.arange(600) % CLASSES
    total = run(head, features, target, impl=impl, reduction="sum", upstream=torch.tensor(1.0))
    mean = run(head, features, target, impl=impl, reduction="mean", upstream=torch.tensor(600.0))
    torch.testing.assert_close(mean.gradients, total.gradients)
