"""Which tokens are computed together: chunks, blocks of chunks, memory, and ignored tokens."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses import chunking, mixtape, nll, runner
from highrank_plugins.losses.chunking import tokens_within
from highrank_plugins.losses.fused import ROW_MULTIPLE
from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import MIXTAPE, MOC, MOS, SOFTMAX, make_features
from tests.largest_tensor import Largest
from tests.losses.implementations import (
    ONCE,
    TARGET,
    TOKENS,
    UPSTREAM,
    assert_same,
    compare,
    inputs,
    memory_for,
    recorded_chunks,
    recorded_inputs,
    run,
)

MIB = 2**20


def features(tokens, dtype=torch.float32):
    return torch.empty(tokens, 1, dtype=dtype)


ON_GPU = torch.empty(10_000, 1, dtype=torch.bfloat16, device="meta")
TEN_THOUSAND, SHORT = features(10_000), features(700)


@pytest.mark.parametrize(("x", "floats", "options", "tokens"), [
    # the default grows with the vocabulary matrix, from 31 to 64 MiB
    (TEN_THOUSAND, 150_000, {"matrix": (10_000, 100)}, 31 * MIB // 600_000),
    (TEN_THOUSAND, 150_000, {"matrix": (10_000, 280)}, 4.5 * 4 * 10_000 * 280 // 600_000),
    (TEN_THOUSAND, 150_000, {"matrix": (33_278, 300)}, 64 * MIB // 600_000),
    # at most half of the tokens, or what the caller says, and at least 16
    (SHORT, 10_000, {}, 350),
    (SHORT, 10_000, {"most": 700}, 700),
    (SHORT, 10_000, {"most": 200}, 350),
    (features(20), 100_000, {}, 16),
    # within a budget; sums are wide
    (SHORT, 1000, {"memory": 40_000}, 10),
    (features(700, torch.float64), 1000, {"memory": 40_000}, 5),
    (features(700, torch.bfloat16), 1000, {"memory": 40_000}, 10),
    # on a GPU a large vocabulary still gets rows for fast products
    *((ON_GPU, m, {"matrix": (m, 64), "most": 10_000, "width": 2}, rows)
      for m, rows in ((32_768, 2048), (65_536, 1024), (131_072, 1024), (262_144, 1024))),
    (ON_GPU, 32_768, {"memory": 2**20, "width": 2}, 16),
    (ON_GPU[:300], 32_768, {"matrix": (32_768, 64), "most": 100, "width": 2}, 150),
])  # fmt: skip
def test_as_many_tokens_share_a_chunk_as_fit(x, floats, options, tokens):
    assert tokens_within(x, floats, **{"memory": None, **options}) == tokens


def test_a_budget_below_a_token_is_refused():
    too_few = r"--head-loss-memory\): 3999 bytes cannot hold one token, which takes 4000; .* 1 MiB"
    with pytest.raises(UserError, match=too_few):
        tokens_within(SHORT, 1000, 3999)
    assert tokens_within(SHORT, 1000, 4000) == 1


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


@pytest.mark.parametrize("impl", [name for name in ONCE if name != "chunked"])
def test_a_block_of_several_chunks_matches(case, impl, reduction, monkeypatch):
    """Compute contexts of 35 tokens at once, and their logits in three chunks, as a GPU does.

    Mixtape has the leaves of a chunk in three blocks.
    """
    head, features = inputs(case, 5 * TOKENS)
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


# -- memory ---------------------------------------------------------------------------------------

WIDE, LONG = 500, 400  # classes, tokens
IN_TRITON = 60  # its interpreter takes 20 ms for each token of a MoS


def largest(case, tokens, **options):
    head = case.build(classes=WIDE, dtype=torch.float32)
    features = make_features(tokens).float().requires_grad_()
    with Largest() as seen:
        run(head, features, torch.arange(tokens), upstream=torch.tensor(0.7), label_smoothing=0.1,
            memory=memory_for(head, 5, options["impl"]), **options)  # fmt: skip
    return seen.numel


def test_the_largest_tensor_is_a_chunk(case, reduction, impl, monkeypatch):
    monkeypatch.setattr(tiles, "COLUMNS", 4096)  # as outside tests; the interpreter is slow
    tokens = IN_TRITON if impl == "triton" else LONG
    assert largest(case, tokens, impl="reference", reduction=reduction) >= WIDE * tokens
    # ten float32 tokens fit, with K components each; Triton's rows are padded
    components = case.options.get("components", 1)
    width = WIDE if impl != "triton" else -(-WIDE // ROW_MULTIPLE) * ROW_MULTIPLE
    bound = 10 * components * width
    assert largest(case, tokens, impl=impl, reduction=reduction) <= bound < WIDE * tokens


def test_log_probs_without_gradients_take_chunks_of_one_softmax_per_token(case):
    """Allow N × M log-probabilities, but K times that only for a chunk; a short batch is one.

    That saves a beam search a copy: two chunks would be joined into one tensor.
    """
    head = case.build(classes=WIDE, dtype=torch.float32)
    with recorded_chunks(head) as chunks, torch.no_grad():
        head(make_features(LONG).float())
    assert chunks == [LONG]
    head.floats_per_token = lambda: 2**20
    with Largest() as seen, torch.no_grad():
        head(make_features(LONG).float())
    assert seen.numel == WIDE * LONG


@pytest.mark.parametrize("impl", ["top_k", "chunked"])
def test_results_of_chunks_do_not_keep_their_numbers_in_memory(impl):
    """Results that outlived a chunk lay in the memory that its log-probabilities had left."""
    code = f"""if True:
        import resource, torch
        from highrank_plugins.heads import build_head
        torch.set_num_threads(1)
        head = build_head("softmax", num_classes=4_000, feature_dim=16)
        x, y = torch.randn(12_000, 16), torch.zeros(12_000, dtype=torch.long)
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        before = peak()
        with torch.no_grad():
            head.top_k(x) if {impl!r} == "top_k" else head.nll(x, y, impl="chunked", entropy=True)
        print(peak() - before)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 110  # MiB; all log-probabilities take 183


# -- ignored tokens: left out before the loss; the others keep their masks, noise and weights ------

SHAPE = (47, 3)  # several blocks of noise
DROPPED = [
    SOFTMAX.with_pointwise("gss"),
    MOC.with_options(dropout=0.3),
    MOS.with_options(dropout=0.3, locked_dropout=True),
    MIXTAPE.with_options(dropout=0.3, gate_dropout=0.2, gate_noise=0.3),
]


def batch(share, seed=2):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(7, SHAPE, generator=generator)
    drawn = torch.rand(SHAPE, generator=generator)
    target[drawn < share] = -1
    options = {"weight": drawn.double() + 0.5, "ignore_index": -1, "label_smoothing": 0.1,
               "z_loss": 0.05, "accuracy": True}  # fmt: skip
    return target, options


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("impl", [name for name in ONCE if name != "triton"])
@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_losses_without_ignored_tokens_match_the_reference(case, impl, reduction, monkeypatch):
    """The reference computes all tokens. A GPU may compute more than are kept."""
    head, features = case.build().train(), make_features(*SHAPE).requires_grad_()
    upstream = torch.linspace(1, 2, 141).view(SHAPE) if reduction == "none" else torch.tensor(1.3)
    for share in (0.7, 0.97 if reduction == "mean" else 1.0):
        target, options = batch(share)
        options |= {"reduction": reduction, "upstream": upstream}
        compare(head, features, target, impl, **options)
    target, options = batch(0.7)
    options |= {"reduction": reduction, "upstream": upstream}
    monkeypatch.setattr(
        nll, "kept_rows", lambda plan: plan.ignored.argsort(stable=True)[: plan.kept_tokens]
    )
    want = run(head, features, target, impl="reference", **options)
    more = int((target >= 0).sum()) + 9
    assert_same(run(head, features, target, impl=impl, kept_tokens=more, **options), want)


@pytest.mark.parametrize("share, left_out", [(0.0, 0), (0.03, 0), (0.5, 75)])
def test_the_layer_computes_no_ignored_tokens(share, left_out, monkeypatch):
    head, (target, options) = MIXTAPE.build(), batch(share)
    sizes = recorded_inputs(head, monkeypatch)
    head.nll(make_features(*SHAPE), target, impl="fused", reduction="sum", **options)
    assert sum(sizes) == target.numel() - left_out


def test_a_gpu_is_not_asked_how_many_tokens_are_kept():
    """Device meta has no numbers, and refuses to give one."""
    ignored = torch.empty(100, dtype=torch.bool, device="meta")
    given = {"ignored": ignored, "random_state": RandomState()}

    def kept(most, **changes):
        return nll.kept_rows(SimpleNamespace(**{**given, **changes}, kept_tokens=most))

    assert len(kept(20)) == 20
    assert kept(None) is kept(99) is None
    assert kept(20, random_state=RandomState(noise_sd=0.1)) is None
