"""Log-probabilities and gradients against the NumPy oracle; far tails, half precision."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.heads.mixtape import number_of_frequent
from highrank_plugins.losses import chunking
from tests.heads import oracle
from tests.heads.cases import (
    CASES,
    CHOSEN,
    CLASSES,
    MIXTAPE,
    POINTWISE,
    PRODUCT,
    SOFTMAX,
    SOFTMAX_GATES,
    STRUCTURES,
    VARIANTS,
    arrays_of,
    make_features,
)
from tests.losses.implementations import RUNNABLE, recorded_chunks


def check(case, head, features):
    got = head(features)
    assert got.dtype == torch.float64
    want = case.oracle_log_probs(arrays_of(head), features.numpy())
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_probabilities_equal_those_of_the_oracle(case):
    check(case, case.build(), make_features(5))


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_any_leading_dimensions_and_strides_are_accepted(case):
    head = case.build()
    for leading in ((), (1,), (3, 2), (2, 1, 3), (0,), (2, 0)):
        check(case, head, make_features(*leading))
    features = make_features(3, 4).transpose(0, 1)
    assert not features.is_contiguous()
    check(case, head, features)
    check(case, head, make_features(5, feature_dim=8)[:, ::2])


@pytest.mark.parametrize("leading", [(), (0,), (5, 9)], ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_top_k_finds_the_most_probable_classes(case, leading, monkeypatch):
    """Compare the top k of chunks of 16 tokens with those of all log-probabilities."""
    monkeypatch.setitem(chunking.DEFAULT_MEMORY, "cpu", (1, 1))
    head, features = case.build(), make_features(*leading).requires_grad_()
    want = head(features).topk(3)
    with recorded_chunks(head) as sizes:
        values, classes = head.top_k(features, 3)
    assert max(sizes) <= 16 and torch.equal(classes, want.indices)
    torch.testing.assert_close(values, want.values, rtol=1e-12, atol=1e-12)
    assert not values.requires_grad


def test_every_registered_name_is_a_case_or_has_tests_of_its_own():
    cases = {case.head for case in STRUCTURES}
    own = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert cases <= set(head_names()) <= cases | own
    assert pointwise_names() == sorted({name for name, _ in POINTWISE})


@pytest.mark.parametrize("x", [-1e3, -60.0, -19.9, 19.9, 20.5, 37.0, 1e3])
def test_softplus_does_not_turn_linear(x):
    """torch's own softplus is 2e-9 off above 20."""
    head = (case := SOFTMAX.with_pointwise("sigsoftmax")).build()
    with torch.no_grad():
        head.bias.add_(torch.linspace(0, x, len(head.bias)))
    check(case, head, make_features(3))


def test_the_number_of_frequent_classes_is_rounded():
    for ratio, classes, multiple, frequent in (
        (0.1, 32768, 64, 3264),  # 3276
        (0.1, 50257, 64, 5056),  # 5025
        (0.1, 3000, 1, 300),
        (0.1, 630, 64, 63),  # rounding would change the share too much
        (0.1, 640, 64, 64),
        (1.0, 10001, 64, 10001),  # all
        (0.96, 100, 64, 96),  # 128 would be too many
        (0.0, 10000, 64, 0),
    ):
        assert number_of_frequent(ratio, multiple, classes) == frequent


def test_gates_are_probabilities():
    head, features, target = SOFTMAX_GATES.build(), make_features(5), torch.tensor([4, 1, 4, 0, 6])
    gates_NKS = head.class_gates(features, head.tensors())
    assert gates_NKS.shape == (5, 3, 4)  # three frequent classes, and all others
    torch.testing.assert_close(gates_NKS.sum(1), torch.ones(5, 4, dtype=torch.float64))
    own = head.log_weights(features, target, head.tensors()).exp()
    row = target.clamp_max(3)
    torch.testing.assert_close(own, gates_NKS[torch.arange(5), :, row])


@pytest.mark.parametrize("components", [1, 4])
def test_chosen_classes_are_those_of_a_sorted_head(components):
    """Every method has the ids of the words, whose first in the sorted head are the frequent."""
    order, features = [5, 0, 3, 1, 2, 4, 6], make_features(6)
    chosen = CHOSEN.with_options(components=components).build()
    plain = MIXTAPE.with_options(components=components).with_pointwise("gss").build()
    state = chosen.state_dict()
    state |= {name: state[name][order] for name in ("weight", "bias")}
    del state["class_order"]
    plain.load_state_dict(state)
    target, place = torch.tensor([4, 1, 5, 0, 6, 3]), torch.tensor(order).argsort()
    for ours, theirs in (
        (chosen(features), plain(features)[:, place]),
        (chosen.logits(features), plain.logits(features)[:, place]),
        (chosen.top_k(features, 7)[0], plain.top_k(features, 7)[0]),
        (chosen.top_k(features, 7)[1], torch.tensor(order)[plain.top_k(features, 7)[1]]),
        (chosen.nll(features, target).loss, plain.nll(features, place[target]).loss),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    measured = []
    for head, words in ((chosen, target), (plain, place[target])):
        tensors = head.tensors()
        z = head.logit_vectors(features, tensors)
        nll = head.nll_of_logits(z, words, features, tensors)
        weights = head.log_weights(features, words, tensors)
        measured.append([z, nll, weights, head.class_gates(features, tensors)])
    measured[1][0] = measured[1][0][..., place]
    for ours, theirs in zip(*measured, strict=True):
        assert (ours is theirs) if ours is None else torch.allclose(ours, theirs, rtol=1e-12)


TARGET = torch.tensor([2, 0, 6, 4])  # class 4 is ignored
WEIGHT = torch.tensor([0.7, 1.3, 2.0, 1.0], dtype=torch.float64)
UPSTREAM = torch.tensor([1.9, -0.6, 0.8, 3.0], dtype=torch.float64)


def oracle_loss(case, arrays):
    parameters = {name: a for name, a in arrays.items() if name != "features"}
    log_p = case.oracle_log_probs(parameters, arrays["features"])
    loss, _ = oracle.losses(log_p, TARGET.numpy(), WEIGHT.numpy(), 0.1, 4)
    return (loss * UPSTREAM.numpy()).sum()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_complex_steps(case):
    """Compare with smoothing, weights, an ignored token and a random upstream gradient."""
    head, features = case.build(), make_features(4).requires_grad_()
    out = head.nll(features, TARGET, weight=WEIGHT, label_smoothing=0.1, ignore_index=4,
                   impl="reference")  # fmt: skip
    (out.loss * UPSTREAM).sum().backward()

    arrays = {**arrays_of(head), "features": features.detach().numpy()}
    want = oracle.gradients(lambda stepped: oracle_loss(case, stepped), arrays)
    for name, tensor in [*head.named_parameters(), ("features", features)]:
        got = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        np.testing.assert_allclose(got.numpy(), want[name], rtol=1e-9, atol=1e-11, err_msg=name)
    assert np.abs(want["weight"]).sum(axis=1).all() and len(want["weight"]) == CLASSES


# -- logits of ±1e4, saturated gates and priors, NaN, half precision; tests/losses has more --------

GATES = ("prior.weight", "gate_shared.weight", "gate_embed", "gate_bias")


def extreme(case, *, logits=1e4, gates=1e4, dtype=torch.float32, seed=0):
    """Return features in [-1, 1], and a head whose logits and gates reach given sizes."""
    head = case.build(dtype=torch.float64, seed=seed)
    with torch.no_grad():
        head.weight.mul_(logits / head.weight.abs().sum(-1).max())
        for name, parameter in head.named_parameters():
            if name in GATES and parameter.numel():
                parameter.mul_(gates / parameter.abs().sum(-1).max())
    features = make_features(5, seed=seed + 1).clamp(-1, 1)
    return head.to(dtype), features.to(dtype)


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_far_tails_are_exact(case):
    """Compare log-probabilities near -1e4, where a probability would be 0."""
    head, features = extreme(case, dtype=torch.float64)
    assert head(features).min() < -1e3
    check(case, head, features)


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_nan_stays_nan_and_autocast_returns_float32(case):
    """A diverged model has a loss that is NaN, whatever the function on its logits."""
    head, narrow = case.build(), case.build(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = narrow(make_features(3).float())
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3), rtol=0, atol=1e-5)
    features = make_features(2)
    features[0, 0] = torch.nan
    for impl, smoothing in itertools.product({*RUNNABLE} - {"triton"}, (0.0, 0.1)):
        losses = head.nll(features, torch.tensor([1, 2]), impl=impl, label_smoothing=smoothing).loss
        assert losses[0].isnan() and losses[1].isfinite(), impl
        losses.sum().backward()
        assert head.weight.grad.isnan().any()


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_options_keep_extreme_logits_finite(case):
    """The options that tests/losses/test_extreme_numbers does not try."""
    head, features = extreme(case)
    totals = head(features).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=1e-5)
    loss = head.nll(features.requires_grad_(), torch.arange(5), label_smoothing=0.1).loss.sum()
    gradients = torch.autograd.grad(loss, [features, *head.parameters()], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in (loss, *gradients))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_half_precision_errs_by_the_resolution_of_its_products(case, dtype):
    """Softmax, gates and mixtures are computed in float32; plain code errs by up to 1.5 ε."""
    options = {} if case.head == "softmax" else {"embed_dim": 12}
    head = case.build(classes=50, feature_dim=16, **options, dtype=dtype)
    features, words = make_features(64, feature_dim=16).to(dtype), torch.arange(64) % 50
    ours, truth = [], []
    for found, wide in ((ours, dtype), (truth, torch.float64)):
        layer, x = copy.deepcopy(head).to(wide), features.detach().to(wide).requires_grad_()
        value = layer(x)
        value.gather(-1, words.unsqueeze(-1)).mean().backward()
        found += [value, *(t.grad for t in (x, *layer.parameters()))]
    assert ours[0].dtype == torch.float32
    most = torch.finfo(dtype).eps
    for number, (got, want) in enumerate(zip(ours, truth, strict=True)):
        assert (got.double() - want).norm() <= (1.2 if number else 0.25) * most * want.norm()
