"""Replay what went wrong in public losses for large vocabularies; docs/losses.md has the sources.

Each failure is a batch on which some library returned wrong numbers. Ours are compared with the
reference in float64, which test_values.py compares with formulas, for parameters and features that
are rounded in the same way.
"""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import MOS, STRUCTURES, Case
from tests.losses.implementations import ONCE, RUNNABLE, memory_for, run

TOKENS, FEATURES, CLASSES = 12, 8, 67  # no multiple of a tile or of a vector
IGNORED = 3
# largest norm of the error over the norm of the truth
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass
class Batch:
    """Hold a layer in float64, a batch, options of `nll`, and the dtypes to try."""

    head: nn.Module
    features: Tensor
    target: Tensor
    options: dict[str, Any]
    tolerance: dict[torch.dtype, float] = field(default_factory=lambda: TOLERANCE)
    chunk: int | None = None  # tokens


def base(case: Case, classes: int = CLASSES, chunk: int | None = None, **options: Any) -> Batch:
    sizes = {"frequent": classes // 2} if case.head == "mixtape" else {}
    wide = {} if case.head == "softmax" else {"embed_dim": FEATURES}
    head = case.build(classes=classes, feature_dim=FEATURES, **sizes, **wide)
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(TOKENS, FEATURES, generator=generator, dtype=torch.float64)
    target = torch.randint(classes, (TOKENS,), generator=generator)
    target[[1, 4, 9]] = IGNORED  # where a failure asks for that; chunks have unequal numbers then
    options = {"reduction": "sum", "upstream": torch.tensor(0.7, dtype=torch.float64), **options}
    return Batch(head, features, target, options, chunk=chunk)


def confident_targets(case: Case) -> Batch:
    """Give each target a probability that bfloat16 rounds to 1, where 1 − P must not become 0."""
    batch = base(case)
    batch.features = batch.features[:1] + batch.features / 50  # all tokens are equally confident
    batch.target = batch.head(batch.features).argmax(-1)
    while probabilities(batch).min() < 0.9985:
        batch.head.bias[batch.target] += 0.25
    assert probabilities(batch).max() < 1 - 1e-6
    # what is left of the gradients is small, and as exact as the logits
    batch.tolerance = {torch.float32: 1e-3, torch.bfloat16: 0.4, torch.float16: 0.05}
    return batch


def probabilities(batch: Batch) -> Tensor:
    return batch.head(batch.features).gather(-1, batch.target.unsqueeze(-1)).squeeze(-1).exp()


def all_ignored(case: Case) -> Batch:
    batch = base(case, ignore_index=IGNORED)
    batch.target = torch.full_like(batch.target, IGNORED)
    return batch


def common_offset(case: Case) -> Batch:
    """Add 1e4 to all logits, which changes no probability; float32 keeps three decimals of them."""
    batch = base(case)
    batch.head.bias.fill_(1e4)
    batch.tolerance = {**TOLERANCE, torch.float32: 2e-3}
    return batch


def exact_offset(case: Case) -> Batch:
    """Add 1e4 to logits that stay exact in float32: only the loss itself could round them."""
    batch = base(case, reduction="none")
    for name, parameter in batch.head.named_parameters():
        if name in ("weight", "bias"):
            parameter.mul_(16).round_().div_(16)
        else:
            parameter.mul_(1e4)  # tanh, gates and priors become 0, 1 or −1
    batch.features = (16 * batch.features).round() / 16
    batch.head.bias.add_(1e4)
    batch.tolerance = {torch.float32: 1e-6}
    return batch


def large_bias(case: Case) -> Batch:
    """Let the bias decide: twice or not at all would be another loss."""
    batch = base(case, label_smoothing=0.1)
    batch.head.bias.mul_(5)
    return batch


def padding_with_a_function(case: Case) -> Batch:
    """Make all logits so negative that f of a masked column would outweigh them."""
    batch = base(case.with_pointwise("gss", c=-0.3, k=1.7), label_smoothing=0.1)
    batch.head.bias.fill_(-20)
    batch.tolerance = {**TOLERANCE, torch.bfloat16: 0.05}  # torch rounds such logits to 1/16
    return batch


def large_vocabulary(case: Case) -> Batch:
    batch = base(case, classes=2**18 + 3, label_smoothing=0.1)
    batch.features, batch.target = batch.features[:2], batch.target[:2]
    # a sum of 2^18 products rounds more; an accumulator of bfloat16 would be off by its whole size
    batch.tolerance = {**TOLERANCE, torch.float32: 2e-4}
    return batch


def repeated_targets(case: Case) -> Batch:
    batch = base(case)
    batch.target = torch.full_like(batch.target, CLASSES - 1)
    return batch


def strided_inputs(case: Case) -> Batch:
    batch = base(case)
    batch.features = batch.features.t().contiguous().t()
    batch.target = batch.target.repeat_interleave(2)[::2]
    return batch


PER_TOKEN = {"upstream": torch.linspace(-2, 3, TOKENS, dtype=torch.float64), "reduction": "none"}
FAILURES = {
    "confident targets": confident_targets,
    "no multiple of a tile": lambda case: base(case, classes=131, label_smoothing=0.1),
    "all ignored": all_ignored,
    "common offset": common_offset,
    "exact offset": exact_offset,
    "large bias": large_bias,
    "gradients per token": lambda case: base(case, ignore_index=IGNORED, **PER_TOKEN),
    "padding with a function": padding_with_a_function,
    "mean of chunks": lambda case: base(case, chunk=5, ignore_index=IGNORED, reduction="mean",
                                        label_smoothing=0.1),
    "large vocabulary": large_vocabulary,
    "repeated targets": repeated_targets,
    "strided inputs": strided_inputs,
}  # fmt: skip


def replay(failure: str, case: Case, impls: list[str], dtypes: list[torch.dtype]) -> None:
    """Fail if values or gradients of any input differ too much from the truth."""
    found = []
    for dtype in dtypes:
        with torch.no_grad():
            batch = FAILURES[failure](case)
        if dtype not in batch.tolerance:
            continue
        batch.head.to(dtype)
        batch.features = batch.features.to(dtype).requires_grad_()
        head, x = copy.deepcopy(batch.head).double(), batch.features.detach().double().contiguous()
        target = batch.target.clone()
        truth = run(head, x.requires_grad_(), target, impl="reference", **batch.options)
        for impl in impls:
            # the product adds a half-precision bias before it rounds the logits: those at 1e4 to 64
            by_product = impl == "chunked" or (impl == "triton" and case.head != "mixtape")
            if failure == "common offset" and by_product and dtype != torch.float32:
                continue
            memory = batch.chunk and memory_for(batch.head, batch.chunk, impl)
            got = run(batch.head, batch.features, batch.target, impl=impl, memory=memory,
                      **batch.options)  # fmt: skip
            for ours, true in ((got.values, truth.values), (got.gradients, truth.gradients)):
                assert ours.keys() == true.keys()
                for name, expected in true.items():
                    error, size = (ours[name].double() - expected).norm(), float(expected.norm())
                    # a gradient of 0 by nature, as that of a constant added to all logits, is noise
                    if not error <= batch.tolerance[dtype] * max(size, 1e-3):
                        found.append(f"{impl} {dtype} {name}: error {error:.2g}, norm {size:.2g}")
    assert not found


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.head)
def test_former_failures_pass_on_a_cpu(failure, case):
    replay(failure, case, [impl for impl in ONCE if impl in {*RUNNABLE} - {"triton"}], [*TOLERANCE])


# Triton's interpreter takes long: ordinarily one head and dtype, and the cheap failures
IN_TRITON = [("all ignored", MOS), ("large bias", MOS), ("repeated targets", MOS)]
IN_TRITON += [pytest.param(*every, marks=pytest.mark.long)
              for every in itertools.product(FAILURES, STRUCTURES)]  # fmt: skip


@pytest.mark.triton
@pytest.mark.parametrize(("failure", "case"), IN_TRITON, ids=str)
def test_former_failures_pass_with_triton(failure, case, monkeypatch, request):
    is_long = request.node.get_closest_marker("long") is not None
    if failure == "large vocabulary":
        monkeypatch.setattr(tiles, "COLUMNS", 4096)
    replay(failure, case, ["triton"], [*TOLERANCE] if is_long else [torch.bfloat16])
