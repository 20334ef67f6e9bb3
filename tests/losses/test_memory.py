"""No implementation but the reference holds N × M numbers: the largest tensor of a step."""

import subprocess
import sys

import pytest
import torch

from highrank_plugins.losses.fused import ROW_MULTIPLE
from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import STRUCTURES, make_features
from tests.largest_tensor import Largest
from tests.losses.implementations import ONCE, memory_for, run

CLASSES, TOKENS = 500, 400
IN_TRITON = 60  # its interpreter takes 20 ms for each token of a MoS


def largest(case, tokens, **options):
    head = case.build(classes=CLASSES, dtype=torch.float32)
    features = make_features(tokens).float().requires_grad_()
    with Largest() as seen:
        run(head, features, torch.arange(tokens), upstream=torch.tensor(0.7), label_smoothing=0.1,
            memory=memory_for(head, 5, options["impl"]), **options)  # fmt: skip
    return seen.numel


@pytest.fixture
def wide_tiles(monkeypatch):
    """Use tiles as wide as outside tests: fewer of them, for the kernels' interpreter."""
    monkeypatch.setattr(tiles, "COLUMNS", 4096)


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.parametrize("impl", ONCE)
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_largest_tensor_is_a_chunk(case, reduction, impl):
    tokens = IN_TRITON if impl == "triton" else TOKENS
    assert largest(case, tokens, impl="reference", reduction=reduction) >= CLASSES * tokens
    # ten float32 tokens fit, with K components each; Triton's rows are padded
    components = case.options.get("components", 1)
    width = CLASSES if impl != "triton" else -(-CLASSES // ROW_MULTIPLE) * ROW_MULTIPLE
    bound = 10 * components * width
    assert largest(case, tokens, impl=impl, reduction=reduction) <= bound < CLASSES * tokens


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_log_probs_without_gradients_hold_one_softmax_per_token(case):
    """Allow N × M log-probabilities, but K times that only for a chunk."""
    head = case.build(classes=CLASSES, dtype=torch.float32)
    head.floats_per_token = lambda: 2**20
    with Largest() as seen, torch.no_grad():
        head(make_features(TOKENS).float())
    assert seen.numel == CLASSES * TOKENS


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_log_probs_of_a_short_batch_are_one_chunk(case):
    """Save a beam search a copy: two chunks would be joined into one tensor."""
    head = case.build(classes=CLASSES, dtype=torch.float32)
    chunks, chunk_log_probs = [], head.chunk_log_probs

    def seen(features, *rest):
        chunks.append(len(features))
        return chunk_log_probs(features, *rest)

    head.chunk_log_probs = seen
    with torch.no_grad():
        head(make_features(TOKENS).float())
    assert chunks == [TOKENS]


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
