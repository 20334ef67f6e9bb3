"""A loss within activation checkpointing is computed as often as its trunk, not once a block."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import CLASSES, TARGET, TOKENS, memory_for


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_non_reentrant_checkpointing_gives_the_same_gradients(case, reduction, impl):
    head = case.build(classes=CLASSES)
    memory, gradients, calls = memory_for(head, 2, impl), [], []

    def loss(x):
        calls.append(1)
        options = {"impl": impl, "reduction": reduction, "memory": memory}
        return head.nll(x.tanh(), TARGET, **options).loss.sum()

    for wrapped in (False, True):
        head.zero_grad()
        features = make_features(TOKENS).requires_grad_()
        out = checkpoint(loss, features, use_reentrant=False) if wrapped else loss(features)
        in_forward = len(calls)
        out.backward()
        gradients.append([features.grad, *(p.grad for p in head.parameters())])
    assert in_forward == 2  # once alone, once within the checkpoint
    assert len(calls) == 3  # and once more, in the backward pass
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_saved_tensor_hooks_do_not_see_the_contexts_of_blocks():
    """Hooks such as `save_on_cpu` see tensors that outlive the call, not the contexts of blocks."""
    case = next(case for case in STRUCTURES if case.head == "mos")
    head, saved = case.build(classes=CLASSES), []

    def pack(tensor):
        saved.append(tensor.shape)
        return tensor

    features = make_features(TOKENS).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        head.nll(features, TARGET, reduction="sum", impl="fused")
    assert not saved
