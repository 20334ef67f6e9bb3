"""Split an output layer by rows of its vocabulary matrix over processes; its loss stays exact.

Each process has the logits of its own classes only. A chunk of n tokens exchanges the log-sum-exp
of each softmax and the target's value, [n, K] each, in two sums; no logits are gathered.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp
from torch.utils.checkpoint import checkpoint

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head
from highrank_plugins.heads.log_probs import at_target, mix
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.nll import check_arguments
from highrank_plugins.losses.plan import Named

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
    Attributes:
        head: the part, with `stop − first` classes; its `nll` knows no other process.
    """

    def __init__(self, head: Head, group: ProcessGroup | None = None) -> None:
        super().__init__()
        if not isinstance(head, Head):
            raise ValueError(f"head: expected an output layer, got {type(head).__name__}")
        self.group = group
        self.rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        self.num_classes = head.num_classes
        rows = -(-head.num_classes // size)
        self.first = self.rank * rows
        self.stop = min(self.first + rows, head.num_classes)
        self._check(head, size)
        with torch.no_grad():
            self._keep_own_rows(head)
            for name, parameter in head.named_parameters():
                if name not in SPLIT:
                    self._copy_first(parameter)
        floats = torch.tensor([head.floats_per_token()], device=head.weight.device)
        self._floats = int(self.sum(floats, largest=True))  # chunks must be the same everywhere
        self.head = head

    def _check(self, head: Head, size: int) -> None:
        """Refuse, in all processes alike, what cannot be split."""
        told = {"dtype": head.weight.dtype, "classes": head.num_classes, **head.function()}
        told |= {n: tuple(p.shape) for n, p in head.named_parameters()}
        found: list[Any] = [None] * size
        distributed.all_gather_object(found, told, self.group)
        for rank, other in enumerate(found):
            names = found[0].keys() | other.keys()
            if odd := sorted(n for n in names if found[0].get(n) != other.get(n)):
                raise UserError(
                    f"process {rank} of the group has another head than process 0: {odd[0]} is "
                    f"{other.get(odd[0])} there and {found[0].get(odd[0])} in process 0; build the "
                    "same one in each"
                )
        if (size - 1) * -(-head.num_classes // size) >= head.num_classes:
            raise UserError(
                f"{head.num_classes} classes cannot be split over {size} processes: one would have "
                "none; take fewer processes"
            )
        if head._has_own_log_probs:
            raise UserError(f"{type(head).__name__} defines log P of all classes, not logits")
        if head.shares_weight:
            raise UserError(
                "weight= shares the vocabulary matrix with another module, which would keep it "
                "whole and learn apart; build the head with a matrix of its own"
            )
        sharded = [n for n, p in head.named_parameters() if hasattr(p, "to_local")]
        if other := [name for name in sharded if name not in ("weight", "bias")]:
            raise UserError(f"{other[0]} is a DTensor, where the matrix and its bias alone may be")
        if getattr(head, "class_order", None) is not None:
            raise UserError(
                "class_counts= and frequent_classes= permute the rows of the vocabulary matrix; "
                "sort the ids by falling count, and give frequent="
            )
        if "weight" in getattr(head, "parametrizations", ()):
            raise UserError(
                f"{type(head).__name__}: a vocabulary matrix that is a function of other "
                "parameters has no rows to split; build the head with vocabulary='plain'"
            )
        self._check_shard(head.weight)

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
        given: Any = SimpleNamespace(
            head=self, features=features, target=target, weight=weight, reduction=reduction,
            label_smoothing=label_smoothing, memory=memory, z_loss=0.0,
        )  # fmt: skip
        check_arguments(given, features.shape[:-1])
        flat, wanted = self.head.flatten_features(features), target.reshape(-1)
        kept = wanted != ignore_index if ignore_index is not None else torch.ones_like(wanted) > 0
        if (bad := kept & ((wanted < 0) | (wanted >= self.num_classes))).any():
            wrong = int(wanted[bad][0])
            raise ValueError(f"target {wrong}: must lie in [0, {self.num_classes}) or ignore_index")
        index = kept.nonzero().squeeze(1)
        random_state = self._random_state(features).of_tokens(index)
        x, target_n = _Shared.apply(flat[index], self), wanted[index]
        tensors = {}
        for name, t in self.head.tensors().items():
            own = t.to_local() if hasattr(t, "to_local") else t
            tensors[name] = own if name in SPLIT else _Shared.apply(own, self)
        compute = partial(checkpoint, self._chunk, use_reentrant=False, preserve_rng_state=False)
        twice = bool(label_smoothing and self.head.mixes)  # log P of all classes, too
        size = tokens_within(x, self._floats << twice, memory)
        found = torch.cat([
            compute(x[a:b], target_n[a:b], tensors, random_state.rows(a, b), label_smoothing)
            for a, b in chunk_ranges(0, len(index), size)
        ])  # fmt: skip
        total, count = found.sum(), torch.tensor(len(index))
        if weight is not None:
            found = found * weight.reshape(-1)[index]
            total, count = found.sum(), weight.reshape(-1)[index].sum()
        if reduction != "none":
            return total if reduction == "sum" else total / count
        return found.new_zeros(len(wanted)).index_put((index,), found).view(target.shape)

    def _chunk(
        self, features: Tensor, target: Tensor, tensors: Named, random_state: RandomState,
        smoothing: float,
    ) -> Tensor:  # fmt: skip
        """Return the loss of n tokens, from the values of this process's classes."""
        head = self.head
        values = head._values(features, tensors, random_state)
        values_NKM = values if head.mixes else values.unsqueeze(1)
        least = torch.finfo(values_NKM.dtype).min  # a bias may rule out all of this process's
        own_NK = values_NKM.clamp_min(least).logsumexp(-1)
        largest_NK = self.sum(own_NK.detach().clone(), largest=True)
        is_own = (target >= self.first) & (target < self.stop)
        found_NK = at_target((target - self.first).where(is_own, 0), values_NKM)
        parts = [(own_NK - largest_NK).exp(), found_NK.where(is_own[:, None], 0)]
        parts += [values_NKM.sum(-1)] if smoothing and not head.mixes else []
        norm_NK, found_NK, *sums = _Sum.apply(torch.stack(parts), self)
        log_norm_NK = largest_NK + norm_NK.log()
        joint_NK = found_NK - log_norm_NK
        if head.mixes:  # every process has the prior, and the first one its gradient
            log_prior_NK = head.log_prior(features, tensors)
            fixed_NK = log_prior_NK.detach()
            joint_NK = joint_NK + fixed_NK + (log_prior_NK - fixed_NK) * (self.rank == 0)
        nll_N = -mix(joint_NK)
        if not smoothing:
            return nll_N
        share = smoothing / max(1, self.num_classes - 1)
        if head.mixes:  # the gradient of a norm is due to all processes' classes
            level_NK = log_prior_NK - _Shared.apply(log_norm_NK, self)
            own_N = mix(values_NKM + level_NK.unsqueeze(-1)).sum(-1)
            smooth_N = -_Sum.apply(own_N, self)
        else:
            smooth_N = self.num_classes * log_norm_NK[:, 0] - sums[0][:, 0]
        return (1 - smoothing - share) * nll_N + share * smooth_N

    def _random_state(self, features: Tensor) -> RandomState:
        """Return equal masks in all processes, and noise of each its own."""
        head = self.head
        if not (head.training or head.retain_dropout):
            return RandomState()
        seed = torch.randint(2**62, (1,), device=features.device)
        self._copy_first(seed)
        with torch.random.fork_rng([features.device] if features.is_cuda else []):
            torch.manual_seed(int(seed))
            found = head.sample_masks(features.shape[:-1], features)
        found.noise_seed += self.rank
        return found

    def _copy_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of the group's first process."""
        source = distributed.get_global_rank(self.group, 0) if self.group else 0
        distributed.broadcast(tensor, source, self.group)

    def sum(self, tensor: Tensor, largest: bool = False) -> Tensor:
        """Return the sum, or the largest, of all processes' tensors."""
        distributed.all_reduce(tensor, ReduceOp.MAX if largest else ReduceOp.SUM, self.group)
        return tensor


class _Sum(torch.autograd.Function):
    """Sum over processes, all of which have the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: VocabularyParallel) -> Tensor:
        return split.sum(x.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


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
