"""Split an output layer by rows of its vocabulary matrix over processes; its loss stays exact.

Each process has the logits of its own classes only, and gathers none: see `losses.split`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.heads.softmax import Softmax
from highrank_plugins.losses.nll import compute_nll
from highrank_plugins.losses.plan import LossPlan, Named
from highrank_plugins.own_layers.ours import RAW, is_ours, is_unchanged

SPLIT = ("weight", "bias", "gate_embed", "gate_bias")  # parameters with a row for each class


class VocabularyParallel(nn.Module):
    """Compute −log P(target) with a head whose classes are split over the processes of a group.

    Every process builds the same head [M, D], with the same options, and keeps the rows of its own
    classes: `range(first, stop)`, as `torch.chunk` splits them. The other parameters are copied
    from the group's first process; their gradients, and that of the features, are sums over all
    processes, and equal those of the whole head. All processes must pass the same batch. Dropout
    and gate noise are drawn from a seed of the first process.

    A matrix that is a DTensor stays one, if its placement is Shard(0) of the group's mesh.

    Args:
        head: softmax, MoS, MoC or Mixtape with any function; becomes the part of this process.
        group: processes that share the vocabulary; None: all.
        device: where a head that was built on the device meta gets its rows and initial values, so
            that no process ever holds the whole matrix.
    Attributes:
        head: the part, with `stop − first` classes; its `nll` knows no other process.
    """

    def __init__(
        self, head: Head, group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.group = group
        self.rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        if self.rank < 0:
            raise UserError("group: this process is not in it")
        self.num_classes = head.num_classes
        self.rows = -(-head.num_classes // size)  # of all processes but the last
        self.first = self.rank * self.rows
        self.stop = min(self.first + self.rows, head.num_classes)
        self._refuse(head, self._problem(head, size), size)
        with torch.no_grad():
            self._keep_own_rows(head)
            if head.weight.is_meta:
                head.to_empty(device=device)
                with self._seeded(head.weight.device, self.rank):
                    head.reset_parameters()
            for name, tensor in (*head.named_parameters(), *head.named_buffers()):
                if name not in SPLIT:
                    self._copy_first(tensor)
        fused: Any = head.fused
        floats = torch.tensor([fused.floats_per_token(head)], device=head.weight.device)
        self.floats = int(self.sum(floats, largest=True))  # of a token; chunks must be the same
        self.head = head
        if not is_ours(head.pointwise):
            self._try_function(head)

    def _refuse(self, head: Head, problem: str | None, size: int) -> None:
        """Raise the same error in all processes if one has a problem or another head."""
        told: dict[str, Any] = {}
        if not problem:
            told = {"dtype": head.weight.dtype, "device": head.weight.device.type}
            told |= {"classes": head.num_classes, "training": head.training, **head.function()}
            for n, p in head.named_parameters():
                told |= {n: tuple(p.shape), f"{n}.requires_grad": p.requires_grad}
        found: list[Any] = [None] * size
        distributed.all_gather_object(found, (problem, told), self.group)
        for rank, (problem, _) in enumerate(found):
            if problem:
                raise UserError(f"process {rank} of the group: {problem}")
        first = found[0][1]
        for rank, (_, other) in enumerate(found):
            if odd := sorted(n for n in first | other if first.get(n) != other.get(n)):
                raise UserError(
                    f"process {rank} of the group has another head than process 0: {odd[0]} is "
                    f"{other.get(odd[0])} there and {first.get(odd[0])} in process 0; build the "
                    "same one in each"
                )

    def _problem(self, head: Head, size: int) -> str | None:
        """Return why a head cannot be split, or None."""
        kind = type(head).__name__
        if head.weight.is_meta and [*head.buffers()]:
            return f"{kind} on meta has buffers, whose numbers are lost; build it with its numbers"
        if (size - 1) * self.rows >= head.num_classes:
            return (
                f"{head.num_classes} classes cannot be split over {size} processes: one would have "
                "none; take fewer processes"
            )
        parts = set(head.modules()) - set(head.pointwise.modules())
        is_one = head.fused is not None and all(map(is_unchanged, parts))
        is_plain = not head.shares_weight and "weight" in head._parameters
        if not is_one or not is_plain or getattr(head, "class_order", None) is not None:
            return (
                f"{kind} cannot be split: it must be a softmax, mos, moc or mixtape with a plain "
                "matrix of its own (no weight= and vocabulary=) in the order of class ids (no "
                "class_counts= and frequent_classes=)"
            )
        named: dict[str, Any] = dict(head.named_parameters())
        for name, own in ((n, p) for n, p in named.items() if hasattr(p, "to_local")):
            is_split = name in ("weight", "bias") and own.placements[0].is_shard(0)
            if not is_split or len(own.to_local()) != self.stop - self.first:
                return (
                    f"{name} is a DTensor with {own.placements}; only matrix and bias may be "
                    f"one, with Shard(0) over this group, here rows {self.first} to {self.stop - 1}"
                )
        return None

    def _try_function(self, head: Head) -> None:
        """Refuse a wrong own function, by a small softmax that is the same in all processes."""
        function = deepcopy(head.pointwise).to(head.weight.device)
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            small = Softmax(5, 3, pointwise=function).to(head.weight)
            target = torch.arange(7, device=head.weight.device) % 5
            x = torch.randn(7, 3).to(head.weight).requires_grad_()
            small.nll(x, target, reduction="sum", impl="fused")

    def _keep_own_rows(self, head: Head) -> None:
        frequent: int = getattr(head, "frequent", 0)
        for name in SPLIT:
            whole = getattr(head, name, None)
            if whole is None or hasattr(whole, "to_local"):
                continue
            last = frequent if name.startswith("gate") else head.num_classes
            own = whole[min(self.first, last) : min(self.stop, last)].clone()
            setattr(head, name, nn.Parameter(own, requires_grad=whole.requires_grad))
        head.num_classes = self.stop - self.first
        if isinstance(head, Mixtape):
            head.frequent = min(max(frequent - self.first, 0), head.num_classes)

    def forward(
        self, features: Tensor, target: Tensor, *, weight: Tensor | None = None,
        label_smoothing: float = 0.0, ignore_index: int | None = None, reduction: str = "none",
        memory: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the loss of `Head.nll` with the whole head, the same in every process."""
        plan = LossPlan(
            self.head, self.head.flatten_features(features), target, self._random_state(features),
            weight, label_smoothing, ignore_index, reduction, "fused", memory, split=self,
        )  # fmt: skip
        return compute_nll(plan, features.shape[:-1]).loss

    def shared(self, named: Named) -> Named:
        """Return the inputs of a loss, whose gradients are summed where all processes have them."""
        found = {}
        for name, t in named.items():
            own = t.to_local() if hasattr(t, "to_local") else t
            found[name] = own if name.removesuffix(RAW) in SPLIT else _Shared.apply(own, self)
        return found

    def _random_state(self, features: Tensor) -> RandomState:
        """Return equal masks in all processes, and noise of each its own."""
        head = self.head
        if not head.training:
            return RandomState()
        with self._seeded(features.device):
            found = head.sample_masks(features.shape[:-1], features)
        # each block of tokens has the next seed, of which a CPU reads 32 bits
        found.noise_seed += self.rank * 0x9E3779B9
        return found

    @contextmanager
    def _seeded(self, device: torch.device, summand: int = 0) -> Iterator[None]:
        seed = torch.randint(2**62, (1,), device=device)
        self._copy_first(seed)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(seed) + summand)
            yield

    def _copy_first(self, tensor: Tensor) -> None:
        source = distributed.get_global_rank(self.group, 0) if self.group else 0
        distributed.broadcast(tensor, source, self.group)

    def sum(self, tensor: Tensor, largest: bool = False) -> Tensor:
        """Return the sum, or the largest, of all processes' tensors."""
        distributed.all_reduce(tensor, ReduceOp.MAX if largest else ReduceOp.SUM, self.group)
        return tensor


class _Shared(torch.autograd.Function):
    """Return what all processes have alike; its gradient is the sum over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: VocabularyParallel) -> Tensor:
        ctx.split = split
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.split.sum(grads[0].clone()), None
