"""Relative attention is the paper's formula, at every length, mask and step, without its size."""

import math

import pytest
import torch
from torch.testing import assert_close

from highrank_plugins.trunks import RelativeAttention
from tests.largest_tensor import Largest

BATCH, HEADS, DIM = 2, 3, 4
# queries, keys, clip
SIZES = [(1, 1, 1), (1, 6, 2), (1, 3, 5), (2, 2, 1), (5, 5, 2), (5, 5, 16), (3, 7, 2), (7, 7, 1),
         (4, 9, 4), (6, 6, 5), (6, 6, 6)]  # fmt: skip
MASKS = ["none", "causal", "padding", "both"]


def relative_attention(q, k, v, tables, clip, mask=None, dropout=None):
    """Return contexts and weights of the last T of S positions, in torch for gradients."""
    queries, keys = q.size(-2), k.size(-2)
    a_k, a_v = tables
    contexts, all_weights = [], []
    for i in range(queries):
        rows = [clip + max(-clip, min(clip, j - (keys - queries + i))) for j in range(keys)]
        logits = torch.stack(
            [(q[..., i, :] * (k[..., j, :] + a_k[rows[j]])).sum(-1) for j in range(keys)], -1
        ) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits + mask.expand(*logits.shape[:-1], queries, keys)[..., i, :]
        weights = logits.softmax(-1)
        all_weights.append(weights)
        if dropout is not None:
            weights = weights * dropout[..., i, :]
        context = sum(weights[..., j, None] * (v[..., j, :] + a_v[rows[j]]) for j in range(keys))
        contexts.append(context)
    return torch.stack(contexts, -2), torch.stack(all_weights, -2)


def inputs(queries, keys, dim=DIM, dtype=torch.float64):
    torch.manual_seed(1)
    lengths = (queries, keys, keys)
    return [torch.randn(BATCH, HEADS, n, dim).to(dtype).requires_grad_() for n in lengths]


def mask_of(kind, queries, keys):
    hidden = -math.inf
    causal = torch.full((queries, keys), hidden).triu(keys - queries + 1).double()
    padding = torch.zeros(BATCH, 1, 1, keys).double()
    padding[1, ..., : keys // 2] = hidden
    if kind == "both":
        padding[1, ..., 0] = 0  # a first query that sees nothing would be NaN, as it is in torch
    return {"none": None, "causal": causal, "padding": padding, "both": causal + padding}[kind]


def layer_of(clip, dim=DIM):
    torch.manual_seed(0)
    return RelativeAttention(dim, clip).double()


def gradients(outputs, leaves):
    torch.manual_seed(2)
    loss = sum((out * torch.randn_like(out)).sum() for out in outputs)
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("queries", "keys", "clip"), SIZES)
def test_values_and_gradients_follow_the_formula(queries, keys, clip, kind):
    layer, (q, k, v) = layer_of(clip), inputs(queries, keys)
    tables = (layer.key_table, layer.value_table)
    mask = mask_of(kind, queries, keys)
    want = relative_attention(q, k, v, tables, clip, mask)
    got = layer(q, k, v, mask)
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    leaves = [q, k, v, *tables]
    for ours, theirs in zip(gradients(got, leaves), gradients(want, leaves), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    # dropout acts on both sums and not on the returned weights
    kept = torch.empty(BATCH, HEADS, queries, keys).bernoulli_(0.5).double() * 2
    want = relative_attention(q, k, v, tables, clip, mask, dropout=kept)
    assert_close(layer(q, k, v, mask, lambda w: w * kept), want)
    assert_close(want[1].sum(-1), torch.ones(BATCH, HEADS, queries).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_as_exact_as_the_formula_in_half(dtype):
    layer, exact = layer_of(3, dim=16), inputs(20, 20, 16)
    want, _ = layer(*exact)
    half, args = layer.to(dtype), [x.to(dtype) for x in exact]
    got, weights = half(*args)
    assert (got.dtype, weights.dtype) == (dtype, torch.float32)
    plain, _ = relative_attention(*args, (half.key_table, half.value_table), 3)
    assert (got - want).norm() < 1.5 * (plain - want).norm()


def test_no_tensor_holds_a_vector_for_each_pair_of_positions():
    length, dim = 40, 64
    layer, args = layer_of(16, dim), inputs(length, length, dim)
    with Largest() as largest:
        layer(*args)[0].sum().backward()
    per_head = largest.numel / 2 / (BATCH * HEADS)  # of float64
    assert length * length < per_head <= 2 * length * length < length * length * dim / 8


def test_tables_start_glorot_uniform_and_sizes_that_do_not_fit_are_refused():
    layer = RelativeAttention(64)  # the papers clip at 16
    bound = math.sqrt(6 / (33 + 64))
    for table in (layer.key_table, layer.value_table):
        assert table.shape == (33, 64)
        assert 0.95 * bound < table.abs().max() <= bound
    assert sorted(layer.state_dict()) == ["key_table", "value_table"]
    for sizes, name in (((0, 16), "head_dim"), ((4, 0), "clip")):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            RelativeAttention(*sizes)
    with pytest.raises(ValueError, match="as many queries as keys, got 3 and 2"):
        layer_of(2)(*inputs(3, 2))
