"""Split an output layer by rows of its vocabulary matrix over processes; its loss stays exact.

Each process has the logits of its own classes only. A chunk of n tokens exchanges the log-sum-exp
of each softmax and the target's value, [n, K] each, in two sums; no logits are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses.chunking import tokens_within
from highrank_plugins.losses.nll import compute_nll
from highrank_plugins.losses.plan import LossPlan, Named

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
        if not isinstance(head, Head):
            raise ValueError(f"head: expected an output layer, got {type(head).__name__}")
        self.group = group
        self.rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        self.num_classes = head.num_classes
        self.rows = -(-head.num_classes // size)  # of all processes but the last
        self.first = self.rank * self.rows
        self.stop = min(self.first + self.rows, head.num_classes)
        self._check(head, size, device)
        self._check_shard(head.weight)
        with torch.no_grad():
            self._keep_own_rows(head)
            if device is not None and head.weight.is_meta:
                head.to_empty(device=device)
                with self._seeded(head.weight.device, self.rank):
                    head.reset_parameters()
            for name, parameter in head.named_parameters():
                if name not in SPLIT:
                    self._copy_first(parameter)
        fused: Any = head.fused
        floats = torch.tensor([fused.floats_per_token(head)], device=head.weight.device)
        self.floats = int(self.sum(floats, largest=True))  # of a token; chunks must be the same
        self.head = head

    def _check(self, head: Head, size: int, device: Any) -> None:
        """Refuse, in all processes alike, what cannot be split."""
        told = {"dtype": head.weight.dtype, "classes": head.num_classes, **head.function()}
        told |= {n: tuple(p.shape) for n, p in head.named_parameters()}
        found: list[Any] = [None] * size
        distributed.all_gather_object(found, told, self.group)
        first = found[0]
        for rank, other in enumerate(found):
            if odd := sorted(n for n in first | other if first.get(n) != other.get(n)):
                raise UserError(
                    f"process {rank} of the group has another head than process 0: {odd[0]} is "
                    f"{other.get(odd[0])} there and {first.get(odd[0])} in process 0; build the "
                    "same one in each"
                )
        if (size - 1) * self.rows >= head.num_classes:
            raise UserError(
                f"{head.num_classes} classes cannot be split over {size} processes: one would have "
                "none; take fewer processes"
            )
        if head.weight.is_meta != (device is not None):
            raise UserError(
                f"device={device}, and the head is on {head.weight.device}: give it, to say where "
                "rows are made, if and only if the head is on meta"
            )
        if head.fused is None or head._has_own_log_probs:
            raise UserError(
                f"{type(head).__name__} has no fused loss, which is what is split; softmax, MoS, "
                "MoC and Mixtape have one, with any function"
            )
        if head.shares_weight:
            raise UserError(
                "weight= shares the matrix with another module, which would keep it whole and "
                "learn apart; build the head with its own"
            )
        sharded = [n for n, p in head.named_parameters() if hasattr(p, "to_local")]
        if other := [name for name in sharded if name not in ("weight", "bias")]:
            raise UserError(f"{other[0]} is a DTensor, where the matrix and its bias alone may be")
        if getattr(head, "class_order", None) is not None:
            raise UserError("class_counts= and frequent_classes= permute the rows of the matrix; "
                            "sort the ids by falling count, and give frequent=")  # fmt: skip
        if "weight" in getattr(head, "parametrizations", ()):
            raise UserError(
                f"{type(head).__name__}: a vocabulary matrix that is a function of other "
                "parameters has no rows to split; build the head with vocabulary='plain'"
            )

    def _check_shard(self, own: Any) -> None:
        """Refuse a matrix that is a DTensor with other rows than this process's."""
        if hasattr(own, "to_local") and (
            not own.placements[0].is_shard(0) or len(own.to_local()) != self.stop - self.first
        ):
            raise UserError(
                f"the matrix is a DTensor with {own.placements}, which does not hold rows "
                f"{self.first} to {self.stop - 1}; distribute it with Shard(0) over this group"
            )

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
        """Return the loss of `Head.nll` with the whole head, the same in every process.

        Args:
            features: [..., F]; target: int64 [...], in [0, M) or `ignore_index`.
            weight, label_smoothing, ignore_index, reduction, memory: as `Head.nll`.
        """
        flat = _Shared.apply(self.head.flatten_features(features), self)
        chunk = tokens_within(flat, self.floats, memory, (self.rows, self.head.embed_dim))
        plan = LossPlan(
            self.head, flat, target, self._random_state(features), weight, label_smoothing,
            ignore_index, reduction, "fused", memory, most=chunk, split=self,
        )  # fmt: skip
        return compute_nll(plan, features.shape[:-1]).loss

    def tensors(self) -> Named:
        """Return the tensors of the part, whose gradients are summed where all have them."""
        found = {}
        for name, t in self.head.tensors().items():
            own = t.to_local() if hasattr(t, "to_local") else t
            found[name] = own if name in SPLIT else _Shared.apply(own, self)
        return found

    def _random_state(self, features: Tensor) -> RandomState:
        """Return equal masks in all processes, and noise of each its own."""
        head = self.head
        if not (head.training or head.retain_dropout):
            return RandomState()
        with self._seeded(features.device):
            found = head.sample_masks(features.shape[:-1], features)
        found.noise_seed += self.rank
        return found

    @contextmanager
    def _seeded(self, device: torch.device, summand: int = 0) -> Iterator[None]:
        """Draw from a seed of the first process, to which a number is added."""
        seed = torch.randint(2**62, (1,), device=device)
        self._copy_first(seed)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(seed) + summand)
            yield

    def _copy_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of the group's first process."""
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
