"""Run `head.nll` and collect its results, to compare implementations of the loss."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from highrank_plugins.losses import IMPLEMENTATIONS
from highrank_plugins.losses.kernels.cpp.build import Unavailable, library
from highrank_plugins.own_layers import ours as own_layers
from tests.heads.cases import Case, make_features

CLASSES, TOKENS = 13, 7
TARGET = torch.tensor([3, 12, 5, 3, 0, 5, 3])  # 3 and 5 repeat; 5 is ignored where that is asked
IGNORED = 5
WEIGHT = torch.tensor([1.0, 0.3, 2.0, 0.0, 1.7, 0.9, 1.1], dtype=torch.float64)
UPSTREAM = torch.tensor([0.8, -1.3, 0.4, 2.1, 1.9, -0.7, 0.6], dtype=torch.float64)
ONCE = sorted({*IMPLEMENTATIONS} - {"reference"})  # those that are differentiable once
# those that run here; tests with a parameter `impl` are skipped for the others
MISSING = {"triton"} if find_spec("triton") is None else set()
MISSING |= {"cpp"} if isinstance(library(), Unavailable) else set()
RUNNABLE = [name for name in IMPLEMENTATIONS if name not in MISSING]
FULL = {"weight": WEIGHT, "label_smoothing": 0.1, "ignore_index": IGNORED, "accuracy": True,
        "entropy": True, "z_loss": 0.05}  # fmt: skip


@dataclass
class Outcome:
    """Hold the values of one call, and every gradient by name."""

    values: dict[str, Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)


def inputs(case: Case, tokens: int = TOKENS, **sizes: Any) -> tuple[nn.Module, Tensor]:
    """Return a head and features that learn, both in float64."""
    head = case.build(**{"classes": CLASSES, **sizes})
    return head, make_features(tokens).requires_grad_()


def with_reductions(impls: Iterable[str]) -> list[Any]:
    """Return parameters (implementation, reduction).

    Triton's "none" is a long test: it computes what "sum" does, and its interpreter takes 20 ms for
    each token of a MoS.
    """
    return [
        pytest.param(impl, reduction, id=f"{reduction}-{impl}",
                     marks=[pytest.mark.long] * ((impl, reduction) == ("triton", "none")))
        for reduction in ("none", "sum") for impl in impls
    ]  # fmt: skip


def run(head: nn.Module, features: Tensor, target: Tensor, *, seed: int = 0,
        upstream: Tensor | None = None, autocast: bool | torch.dtype = False,
        **options: Any) -> Outcome:  # fmt: skip
    """Run nll, then backward with an upstream gradient that is not constant.

    Only the forward pass runs under autocast, as in trainers.
    """
    head.zero_grad()
    if features.requires_grad:
        features = features.detach().requires_grad_()
    torch.manual_seed(seed)
    dtype = autocast if isinstance(autocast, torch.dtype) else torch.bfloat16
    with torch.autocast("cpu", dtype=dtype, enabled=bool(autocast)):
        out = head.nll(features, target, **options)
    if upstream is None:
        upstream = UPSTREAM if out.loss.dim() else UPSTREAM[1]
    if out.loss.requires_grad:
        out.loss.backward(upstream.to(out.loss).expand_as(out.loss))
    inputs = {**dict(head.named_parameters()), "features": features}
    return Outcome(
        {name: t.detach().clone() for name, t in out._asdict().items() if t is not None},
        {name: t.grad.clone() for name, t in inputs.items() if t.grad is not None},
    )


def assert_same(got: Outcome, want: Outcome, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Assert equal values and equal gradients, in the same places."""
    for ours, theirs in ((got.values, want.values), (got.gradients, want.gradients)):
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(
                ours[name], tensor, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


def compare(head: nn.Module, features: Tensor, target: Tensor, impl: str,
            chunks: Iterable[int | None] = (None,), **options: Any) -> Outcome:  # fmt: skip
    """Compare an implementation, by chunks of some tokens or of its choice, with the reference."""
    want = run(head, features, target, impl="reference", **options)
    for tokens in chunks:
        memory = tokens and memory_for(head, tokens, impl)
        assert_same(run(head, features, target, impl=impl, memory=memory, **options), want)
    return want


def memory_for(head: nn.Module, tokens: int, impl: str = "chunked") -> int:
    """Return the budget in bytes for a chunk of exactly this number of float64 tokens."""
    by_fused = impl in ("fused", "cpp", "triton")
    return 8 * tokens * (head.fused if by_fused else type(head)).floats_per_token(head)


@contextmanager
def recorded_chunks(head: nn.Module) -> Iterator[list[int]]:
    """Record the sizes of the chunks that the head is asked for, by any method."""
    sizes: list[int] = []
    asked: list[int] = []  # the one may call the other

    def recorded(method):
        def wrapped(self, features, *args):
            sizes.extend([features.size(0)] * (not asked))
            asked.append(1)
            try:
                return method(self, features, *args)
            finally:
                asked.pop()

        return wrapped

    methods = {n: recorded(getattr(type(head), n)) for n in ("chunk_nll", "chunk_log_probs")}
    with (
        mock.patch.multiple(type(head), **methods),
        mock.patch.object(own_layers, "is_unchanged", return_value=True),  # the layer stays ours
    ):
        yield sizes


def recorded_inputs(head: nn.Module, patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of tokens of each call of `token_inputs`."""
    sizes: list[int] = []
    cls, inputs = type(head), type(head).token_inputs
    patch.setattr(
        cls, "token_inputs", lambda s, x, *more: sizes.append(len(x)) or inputs(s, x, *more)
    )
    return sizes
