"""The number of tokens in a chunk, and blocks of several chunks."""

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses import chunking, mixtape, runner
from highrank_plugins.losses.chunking import tokens_within
from tests.heads.cases import MOS, STRUCTURES, make_features
from tests.losses.implementations import (
    CLASSES,
    ONCE,
    TARGET,
    TOKENS,
    UPSTREAM,
    assert_same,
    memory_for,
    recorded_chunks,
    recorded_inputs,
    run,
)

MIB = 2**20
WITH_KERNELS = [name for name in ONCE if name != "chunked"]

every_structure = pytest.mark.parametrize("case", STRUCTURES, ids=str)
every_reduction = pytest.mark.parametrize("reduction", ["none", "sum"])


def features(tokens, dtype=torch.float32):
    return torch.empty(tokens, 1, dtype=dtype, device="cpu")


@pytest.mark.parametrize(
    ("matrix", "budget"),
    [
        ((0, 0), 31 * MIB),
        ((10_000, 100), 31 * MIB),
        ((10_000, 280), 4.5 * 4 * 10_000 * 280),  # Penn Treebank's: between the bounds
        ((33_278, 300), 64 * MIB),
    ],
)
def test_the_default_grows_with_the_vocabulary_matrix(matrix, budget):
    floats = 150_000
    tokens = tokens_within(features(10_000), floats, None, matrix=matrix)
    assert tokens == budget // (4 * floats)


def test_the_default_is_at_most_half_of_the_tokens_or_what_the_caller_says():
    assert tokens_within(features(700), 10_000, None) == 350
    assert tokens_within(features(700), 10_000, None, most=700) == 700
    assert tokens_within(features(700), 10_000, None, most=200) == 350
    assert tokens_within(features(20), 100_000, None) == 16  # at least


@pytest.mark.parametrize(
    ("classes", "tokens"), [(32_768, 2048), (65_536, 1024), (131_072, 1024), (262_144, 1024)]
)
def test_on_a_gpu_a_large_vocabulary_still_gets_rows_for_fast_products(classes, tokens):
    on_gpu = torch.empty(10_000, 1, dtype=torch.bfloat16, device="meta")
    given = {"floats_per_token": classes, "matrix": (classes, 64), "most": 10_000, "width": 2}
    assert tokens_within(on_gpu, memory=None, **given) == tokens
    assert tokens_within(on_gpu, memory=2**20, **given) == 2**20 // (2 * classes)
    short = on_gpu[:300]
    assert tokens_within(short, memory=None, **{**given, "most": 100}) == 150


@pytest.mark.parametrize(("classes", "embed_dim"), [(64, 3), (8, 64)])
def test_inputs_of_several_chunks_stay_within_the_limit_of_a_chunk(monkeypatch, classes, embed_dim):
    monkeypatch.setitem(runner.INPUT_MEMORY, "cpu", 2**28)
    head = MOS.build(classes=classes, embed_dim=embed_dim)
    width = head.weight.element_size()
    blocks = recorded_inputs(head, monkeypatch)
    memory = 4 * 3 * classes * width  # of the logits of four tokens
    fitting = memory // (head.token_floats() * width)
    assert fitting >= 8 or fitting < 4  # two chunks and more, or not even the inputs of one
    target = torch.arange(100) % classes
    run(head, make_features(100), target, memory=memory, impl="fused", reduction="sum")
    assert max(blocks) == max(4, fitting // 4 * 4)


def test_chunks_stay_within_the_budget():
    assert tokens_within(features(700), 1000, 40_000) == 10
    assert tokens_within(features(700, torch.float64), 1000, 40_000) == 5
    assert tokens_within(features(700, torch.bfloat16), 1000, 40_000) == 10  # sums are wide
    too_few = r"--head-loss-memory\): 3999 bytes cannot hold one token, which takes 4000; .* 1 MiB"
    with pytest.raises(UserError, match=too_few):
        tokens_within(features(700), 1000, 3999)


@every_reduction
@pytest.mark.parametrize("impl", WITH_KERNELS)
@every_structure
def test_a_block_of_several_chunks_matches(case, impl, reduction, monkeypatch):
    """Compute contexts of 35 tokens at once, and their logits in three chunks, as a GPU does.

    Mixtape has the leaves of a chunk in three blocks.
    """
    head, features = case.build(classes=CLASSES), make_features(5 * TOKENS).requires_grad_()
    options = {"reduction": reduction, "label_smoothing": 0.1}
    if reduction == "none":
        options["upstream"] = UPSTREAM.repeat(5)
    want = run(head, features, TARGET.repeat(5), impl="reference", **options)

    monkeypatch.setitem(chunking.DEFAULT_MEMORY, "cpu", (1, 1))  # the least tokens, 16
    monkeypatch.setitem(mixtape.LEAF_BLOCKS, "cpu", 3)
    monkeypatch.setitem(runner.INPUT_MEMORY, "cpu", 2**28)
    blocks = recorded_inputs(head, monkeypatch)
    got = run(head, features, TARGET.repeat(5), impl=impl, **options)
    assert_same(got, want)
    assert set(blocks) == {5 * TOKENS}


@every_reduction
@pytest.mark.parametrize("tokens", [1, 3, TOKENS])
def test_chunks_have_the_requested_size(tokens, reduction):
    head, features = MOS.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    with recorded_chunks(head) as sizes:
        run(head, features, TARGET, reduction=reduction, impl="chunked",
            memory=memory_for(head, tokens))  # fmt: skip
    assert sizes and max(sizes) <= tokens
    assert sum(sizes) == TOKENS * (2 if reduction == "none" else 1)  # "none" computes again
