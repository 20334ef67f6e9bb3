"""Singular values of blocks are those of the whole matrix; ranks, entropy and decay by theory."""

import math
from dataclasses import replace

import pytest
import torch

from highrank_plugins.analysis import spectrum as spectra
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.heads import Head
from highrank_plugins.heads.random_state import RandomState
from tests.heads.cases import CASES, CLASSES, EMBED_DIM, MIXTAPE, MOC, MOS, SOFTMAX, make_features
from tests.largest_tensor import Largest

ROWS, WIDTH = 83, 20


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(rows=ROWS, width=WIDTH, seed=1):
    return random(rows, width, seed=seed) - 9


def log_probs(rows, width, rank):
    """Return what a softmax layer gives: a spectrum over many orders of magnitude."""
    logits = matrix(rows, rank, seed=2) @ matrix(rank, width, seed=3)
    return (logits / rank).log_softmax(-1)


SIZES = [[2], [19], [20], [21], [40], [41], [83], [20, 20, 43], [1] * 83, [0, 40, 0, 43, 0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("method", ["tsqr", "gram"])
def test_blocks_of_any_size_and_dtype_give_the_dense_values(sizes, method, dtype):
    x = matrix(sum(sizes)).to(dtype)
    found = spectra.spectrum(iter(x.split(sizes)), torch.float64, method)
    assert found.values.dtype == torch.float64 and found.shape == (len(x), WIDTH)
    near = {"rtol": 1e-11, "atol": 0} if len(x) == ROWS else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found.values, torch.linalg.svdvals(x.double()), **near)


def test_float64_sees_what_the_gram_matrix_cannot():
    small = torch.tensor([1.0, 1e-3, 1e-6, 1e-9, 1e-12], dtype=torch.float64)
    left, right = torch.linalg.qr(matrix(50, 5)).Q, torch.linalg.qr(matrix(5, 5, seed=5)).Q
    x = left @ small.diag() @ right
    exact = spectra.spectrum([x])
    torch.testing.assert_close(exact.values, small, rtol=0, atol=1e-15)
    blind = spectra.spectrum([x], method="gram")
    torch.testing.assert_close(blind.values[:3], small[:3], rtol=1e-2, atol=0)
    assert (blind.values[3:] / small[3:] - 1).abs().max() > 0.1
    assert blind.smallest_reliable == pytest.approx(1e-7)
    assert exact.smallest_reliable < 1e-14


def test_auto_takes_the_gram_matrix_only_where_float32_is_enough():
    assert spectra.spectrum([matrix()]).method == "tsqr"
    found = spectra.spectrum([matrix()], dtype=torch.float32)
    assert found.method == "gram"
    assert found.smallest_reliable <= torch.finfo(torch.float32).eps * found.values[0]
    assert found.press_rank() == spectra.press_rank(found.values, found.shape, torch.float32)
    with pytest.raises(ValueError, match=r"method='tsqr', dtype=torch.float64"):
        found.press_rank(torch.float64)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_errors_of_the_matrix_do_not_count_as_rank(narrow):
    x = log_probs(400, 60, rank=7)
    found = spectra.spectrum([x[:100], x[100:].to(narrow)])
    assert found.matrix_dtype == narrow
    assert spectra.press_rank(found.values, found.shape, torch.float64) == 60
    with pytest.raises(ValueError, match=f"noise of a {narrow} matrix"):
        found.press_rank()
    assert found.press_rank(narrow) <= 7 + 1
    if narrow == torch.float32:
        assert found.press_rank(narrow) == 7 + 1
    else:
        with pytest.raises(ValueError, match=f"noise of a {narrow} matrix"):
            found.press_rank(torch.float32)


@pytest.mark.parametrize(("method", "numbers"), [("tsqr", 2 * WIDTH**2), ("gram", WIDTH**2)])
def test_the_whole_matrix_is_never_in_memory(method, numbers):
    blocks = (matrix(20, seed=seed) for seed in range(100))
    with Largest() as seen:
        found = spectra.spectrum(blocks, method=method)
    assert found.shape == (2000, WIDTH)
    assert seen.numel == 2 * numbers  # of float32; these are float64


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_press_rank_counts_what_lies_above_the_tolerance():
    shape = (50, 49)  # √(50 + 49 + 1) / 2 = 5
    eps = torch.finfo(torch.float32).eps
    assert spectra.press_tolerance(2.0, shape, torch.float32) == pytest.approx(10 * eps, rel=1e-15)
    s = values(2.0, 1.0, 10.1 * eps, 10 * eps, 9.9 * eps)
    assert spectra.press_rank(s, shape, torch.float32) == 3
    assert spectra.press_rank(s.flip(0), shape, torch.float32) == 3
    assert spectra.press_rank(s, shape, torch.float64) == 5
    assert spectra.press_rank(values(0.0, 0.0), shape, torch.float64) == 0


def test_rank_entropy_and_decay_equal_values_computed_by_hand():
    s = values(0.6, 0.3, 0.0999, 0.0001, 1e-20).sqrt()  # squares sum to 1
    ranks = {0.9: 1, 0.41: 1, 0.39: 2, 0.11: 2, 0.09: 3, 1e-6: 4, 1e-30: 5}
    for eps, rank in ranks.items():
        assert spectra.effective_rank(s, eps) == spectra.effective_rank(s.flip(0), eps) == rank, eps
        assert spectra.effective_rank(torch.zeros(3), eps) == 0
    assert spectra.spectral_entropy(torch.ones(7)) == pytest.approx(math.log(7), rel=1e-12)
    assert spectra.spectral_entropy(values(3.0, 0.0)) == 0
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert spectra.spectral_entropy(values(3.0, 1.0)) == pytest.approx(expected, rel=1e-12)
    index = torch.arange(1, 101, dtype=torch.float64)
    assert spectra.spectral_decay(5 * index**-0.7) == pytest.approx(1.4, rel=1e-12)
    bent = torch.cat([index[:50] ** -0.5, torch.zeros(50)])
    assert spectra.spectral_decay(bent, last=50) == pytest.approx(1.0, rel=1e-12)
    assert spectra.spectral_decay(torch.ones(4)) == pytest.approx(0, abs=1e-15)


def rank(case, classes=40):
    """Return the rank of 100 contexts of random features and parameters."""
    head = case.build(classes=classes, feature_dim=5)
    with torch.no_grad():
        log_probs = head(2 * make_features(100, feature_dim=5))
    return spectra.spectrum(log_probs.split(64)).press_rank()


def test_ranks_of_layers_are_those_of_theory():
    """One softmax of linear logits has rank d + 2, and so have the rare columns of a Mixtape."""
    one, rare = MOS.with_options(components=1), MIXTAPE.with_options(frequent=0)
    for case, width in ((SOFTMAX, 5), (MOC, EMBED_DIM), (one, EMBED_DIM), (rare, EMBED_DIM)):
        assert rank(case) == width + 2, case
        assert rank(replace(case, bias=False)) == width + 1, case
    assert rank(MIXTAPE.with_options(frequent=20)) == 20 + EMBED_DIM + 2
    bent = [SOFTMAX.with_pointwise(name) for name in ("sigsoftmax", "gss", "plif")]
    for case in (MOS, MIXTAPE.with_options(frequent=40), *bent):
        assert rank(case) == 40, case


# -- gradient retention by projectors written out; the gradient of logits by autograd --------------

TARGET = torch.tensor([[0, 3, 6, 2, 1], [5, 4, 6, 0, 2]])


def test_retention_equals_that_of_the_explicit_projector():
    weight, gradient = random(13, 4), random(7, 13, seed=2)
    projector = weight @ torch.linalg.inv(weight.t() @ weight) @ weight.t()
    whole = (gradient @ projector).norm() / gradient.norm()
    # only the space counts, not the basis; a column twice adds nothing
    mixed = torch.cat([weight @ random(4, 4, seed=3), weight[:, :2]], 1)
    for own, grad, near in (
        (weight, gradient, {}), (mixed, gradient, {}),
        (weight.float(), gradient.float(), {"rtol": 1e-5, "atol": 0}),
    ):  # fmt: skip
        torch.testing.assert_close(gradient_retention(own, grad), whole, **near)
    # a square layer loses nothing, one of zeros all
    assert float(gradient_retention(random(5, 5), random(3, 5))) == pytest.approx(1.0)
    assert float(gradient_retention(torch.zeros(5, 2), random(3, 5))) == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_logit_gradient_gives_the_gradients_of_matrix_and_bias(case):
    head, features = case.build().train(), make_features(2, 5).requires_grad_()
    with torch.no_grad():
        gradient = logit_gradient(head, features, TARGET)
        inputs = head.token_inputs(features.flatten(0, 1), head.tensors(), RandomState())
        contexts = inputs["contexts"].view(TARGET.numel(), -1, head.embed_dim)
        through = torch.einsum("nkm,nkd->md", gradient, contexts)
    assert all(tensor.grad is None for tensor in (features, *head.parameters()))
    head.nll(features, TARGET, reduction="sum", impl="reference").loss.backward()
    torch.testing.assert_close(through, head.weight.grad, rtol=1e-9, atol=1e-12)
    if head.bias is not None:
        torch.testing.assert_close(gradient.sum((0, 1)), head.bias.grad, rtol=1e-9, atol=1e-12)


class OneSoftmax(Head):
    """Stand for a structure that does not define its logits."""

    def chunk_log_probs(self, features, tensors, random_state):
        return torch.nn.functional.linear(features, tensors["weight"]).log_softmax(-1)


def test_a_layer_that_says_nothing_about_its_logits_is_treated_as_a_softmax():
    head = OneSoftmax(CLASSES, 4).double()
    probs = head.log_probs(make_features(2, 5)).flatten(0, 1).exp()
    expected = probs - torch.nn.functional.one_hot(TARGET.flatten(), CLASSES)
    found = logit_gradient(head, make_features(2, 5), TARGET)
    torch.testing.assert_close(found.squeeze(1), expected)
