"""Count how often the host reads a number of a tensor, which synchronises with a GPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class CountReads(TorchDispatchMode):
    """Count `.item()`, `bool(tensor)` and the like, and sizes that depend on values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("impl", ["reference", "chunked", "fused"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_host_reads_no_number_per_chunk(case, dtype, reduction, impl):
    """On a CPU targets are checked, kept tokens counted, a factor of 1 found; overflow anywhere."""
    head = case.build(classes=CLASSES).to(dtype)
    features = make_features(10 * TOKENS).to(dtype).requires_grad_()
    options = {**FULL, "weight": None, "label_smoothing": 0.0}
    with CountReads() as reads:
        out = head.nll(
            features, TARGET.repeat(10), impl=impl, reduction=reduction, memory=8192, **options
        )
        out.loss.sum().backward()
    of_loss = impl != "reference" and reduction == "sum"
    overflow = of_loss and dtype == torch.float16
    assert reads.count == 1 + (impl != "reference") + of_loss + overflow
