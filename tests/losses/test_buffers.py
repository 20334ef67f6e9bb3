"""What a caller does around a loss changes no gradient: refill buffers, checkpoint, keep hooks."""

import gc

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from highrank_plugins import register
from highrank_plugins.losses.own_layers import is_ours
from tests.heads.cases import MIXTAPE, MOS, STRUCTURES, make_features
from tests.losses.implementations import CLASSES, TARGET, TOKENS, WEIGHT, memory_for

every_implementation = pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])


@every_implementation
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_refilled_buffers_and_checkpointing_give_the_same_gradients(case, reduction, impl):
    """Within non-reentrant checkpointing a loss is computed once more, and not once a block."""
    head = case.build(classes=CLASSES)
    memory, gradients, calls = memory_for(head, 2, impl), [], []
    for way in ("plain", "refilled", "checkpointed"):
        head.zero_grad()
        target, weight = TARGET.clone(), WEIGHT.clone()
        options = {"weight": weight, "impl": impl, "reduction": reduction, "memory": memory}

        def loss(x, target=target, options=options):
            calls.append(1)
            return head.nll(x.tanh(), target, **options).loss.sum()

        features = make_features(TOKENS).requires_grad_()
        is_wrapped = way == "checkpointed"
        out = checkpoint(loss, features, use_reentrant=False) if is_wrapped else loss(features)
        in_forward = len(calls)
        if way == "refilled":
            target.fill_(1)
            weight.fill_(9.0)
        out.backward()
        gradients.append([features.grad, *(p.grad for p in head.parameters())])
    assert (in_forward, len(calls)) == (3, 4)  # the last once more, in its backward pass
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0], rtol=0, atol=0)


def test_saved_tensor_hooks_do_not_see_the_contexts_of_blocks():
    """Hooks such as `save_on_cpu` see tensors that outlive the call, not the contexts of blocks."""
    head, saved = MOS.build(classes=CLASSES), []
    features = make_features(TOKENS).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        head.nll(features, TARGET, reduction="sum", impl="fused")
    assert not saved


@every_implementation
@pytest.mark.parametrize("case", [*STRUCTURES, MIXTAPE.with_options(frequent=0)], ids=str)
def test_no_tensor_outlives_a_step(case, impl):
    """Train Mixtape without gates of its own, too: parts of its graph get no gradient."""
    head, counts = case.build(classes=CLASSES), []
    for _ in range(4):
        head.nll(make_features(TOKENS), TARGET, reduction="sum", impl=impl).loss.backward()
        gc.collect()
        counts.append(sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()))
    assert counts[-1] == counts[1]


def test_the_hooks_of_fairseqs_nan_detector_make_no_layer_an_own_one():
    """A diverged run is computed again under them, and must not hear that its layer is wrong."""
    head = MOS.build()
    detector = pytest.importorskip("fairseq.nan_detector")
    register()
    with detector.NanDetector(head):
        assert is_ours(head)
    head.register_forward_hook(lambda *_: None)
    assert not is_ours(head)
