"""Split an output layer by rows of its vocabulary matrix over processes; its loss stays exact.

Each process has the logits of its own classes only. A chunk of n tokens exchanges the log-sum-exp
of each softmax and the target's value, [n, K] each, in two sums; no logits are gathered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup, ReduceOp

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head
from highrank_plugins.heads.log_probs import at_target, mix
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
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
        own: Any = head.weight
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
            label_smoothing: ε; 0 for a Mixture of Softmaxes.
            weight, ignore_index, reduction, memory: as `Head.nll`.
        """
        if reduction not in ("none", "sum", "mean"):
            raise ValueError(f"reduction: expected none, sum or mean, got {reduction!r}")
        if label_smoothing and self.head.mixes:
            raise UserError("label_smoothing: a split Mixture of Softmaxes has none; set 0")
        flat, wanted = self.head.flatten_features(features), target.reshape(-1)
        kept = wanted != ignore_index if ignore_index is not None else torch.ones_like(wanted) > 0
        if (bad := kept & ((wanted < 0) | (wanted >= self.num_classes))).any():
            wrong = int(wanted[bad][0])
            raise ValueError(f"target {wrong}: must lie in [0, {self.num_classes}) or ignore_index")
        index = kept.nonzero().squeeze(1)
        random_state = self._random_state(features).of_tokens(index)
        tensors = {
            name: t.to_local() if hasattr(t, "to_local") else t
            for name, t in self.head.tensors().items()
        }
        settings = self, wanted[index], random_state, label_smoothing, memory, tuple(tensors)
        found = _SplitLoss.apply(settings, flat[index], *tensors.values())
        total = found.sum()
        if weight is not None:
            found = found * weight.reshape(-1)[index]
            total, count = found.sum(), weight.reshape(-1)[index].sum()
        else:
            count = torch.tensor(len(index))
        if reduction != "none":
            return total if reduction == "sum" else total / count
        return found.new_zeros(len(wanted)).index_put((index,), found).view(target.shape)

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


class _SplitLoss(torch.autograd.Function):
    """Compute the loss of each token [N]; backward repeats the chunks' own logits."""

    @staticmethod
    def forward(ctx: Any, settings: Any, features: Tensor, *values: Tensor) -> Tensor:
        split, target, random_state, smoothing, memory, names = settings
        tensors: Named = dict(zip(names, values, strict=True))
        losses, norms = [], []
        for chunk in _chunks(split, features, memory):
            own = _Own(split, features[chunk], target[chunk], tensors, random_state, chunk)
            log_norm_NK, found_NK, sum_N = _exchange(split, own, smoothing > 0)
            joint_NK = found_NK - log_norm_NK
            if own.log_prior_NK is not None:
                joint_NK = joint_NK + own.log_prior_NK
            nll_N = -mix(joint_NK)
            share = smoothing / max(1, split.num_classes - 1)
            losses.append(
                (1 - smoothing - share) * nll_N
                + share * (split.num_classes * log_norm_NK[:, 0] - sum_N)
                if share
                else nll_N
            )
            norms.append(torch.stack((log_norm_NK, (joint_NK + nll_N[:, None]).exp())))
        ctx.settings = settings
        ctx.save_for_backward(features, torch.cat(norms, 1), *values)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        split, target, random_state, smoothing, memory, names = ctx.settings
        features, norms, *values = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        leaves = [t.detach().requires_grad_(n) for t, n in zip(values, needed[1:], strict=True)]
        sums = [torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in leaves]
        grad_features = torch.zeros_like(features)
        for chunk in _chunks(split, features, memory):
            with torch.enable_grad():
                part = features[chunk].detach().requires_grad_()
                tensors = dict(zip(names, leaves, strict=True))
                own = _Own(split, part, target[chunk], tensors, random_state, chunk)
                loss = _surrogate(split, own, norms[0, chunk], norms[1, chunk], smoothing)
            wanted = [part, *(leaf for leaf in leaves if leaf.requires_grad)]
            upstream = grads[0][chunk].to(loss.dtype)
            found = torch.autograd.grad(loss, wanted, upstream, allow_unused=True)
            targets = [grad_features[chunk], *(one for one in sums if one is not None)]
            for total, one in zip(targets, found, strict=True):
                if one is not None:
                    total.add_(one)
        shared = [
            one for n, one in zip(names, sums, strict=True) if one is not None and n not in SPLIT
        ]
        for one in (grad_features, *shared):
            split.sum(one)
        return None, grad_features if needed[0] else None, *sums


class _Own:
    """Hold what a process computes of a chunk: values of its classes, and the prior of all."""

    def __init__(
        self, split: VocabularyParallel, features: Tensor, target: Tensor, tensors: Named,
        random_state: RandomState, chunk: slice,
    ) -> None:  # fmt: skip
        head, tokens = split.head, random_state.rows(chunk.start, chunk.stop)
        values = head._values(features, tensors, tokens)
        self.values_NKM = values if head.mixes else values.unsqueeze(1)
        self.log_norm_NK = self.values_NKM.logsumexp(-1)
        self.log_prior_NK = head.log_prior(features, tensors) if head.mixes else None
        own = (target >= split.first) & (target < split.stop)
        found_NK = at_target((target - split.first).where(own, 0), self.values_NKM)
        self.found_NK = found_NK.where(own[:, None], 0)


def _chunks(split: VocabularyParallel, features: Tensor, memory: int | None) -> list[slice]:
    size = tokens_within(features, split._floats, memory)
    return [slice(*ends) for ends in chunk_ranges(0, len(features), size)]


def _exchange(
    split: VocabularyParallel, own: _Own, smooth: bool
) -> tuple[Tensor, Tensor, Tensor | float]:
    """Return of all classes: log-sum-exps and values of the target [n, K], sums of values [n]."""
    largest_NK = split.sum(own.log_norm_NK.clone(), largest=True)
    parts = [(own.log_norm_NK - largest_NK).exp(), own.found_NK]
    parts += [own.values_NKM.sum(-1)] if smooth else []
    norm_NK, found_NK, *sums = split.sum(torch.stack(parts))
    return largest_NK + norm_NK.log(), found_NK, sums[0][:, 0] if sums else 0.0


def _surrogate(
    split: VocabularyParallel, own: _Own, log_norm_NK: Tensor, share_NK: Tensor, smoothing: float
) -> Tensor:
    """Return a loss [n] whose gradients are this process's part of the whole ones.

    d nll / d f_k(x) = r_k (P_k(x) − [x = target]), d nll / d log π_k = −r_k, where r_k is the share
    of component k. The first process has the gradient of the prior.
    """
    own_part_NK = (own.log_norm_NK.detach() - log_norm_NK).exp() * own.log_norm_NK
    nll_N = (share_NK * (own_part_NK - own.found_NK)).sum(1)
    if own.log_prior_NK is not None and split.rank == 0:
        nll_N = nll_N - (share_NK * own.log_prior_NK).sum(1)
    if not smoothing:
        return nll_N
    share = smoothing / (split.num_classes - 1)
    smooth_N = split.num_classes * own_part_NK[:, 0] - own.values_NKM.sum((1, 2))
    return (1 - smoothing - share) * nll_N + share * smooth_N
