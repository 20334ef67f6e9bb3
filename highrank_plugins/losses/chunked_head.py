"""Define what the losses need to know about a head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor

Named = dict[str, Tensor]  # name of a head's tensor → the tensor, or a value that belongs to it


class KernelFunction(NamedTuple):
    """Identify an f that compiled kernels know: a family of functions, and its parameters.

    | family | f(z) | numbers | tables |
    |---|---|---|---|
    | identity | z | | |
    | gss | z + (k − 1) log σ(z − c) | c, k | |
    | logistic | a σ((z + b) / s) + d | a, b, s, d | |
    | multimax | see `heads.pointwise.MultiMax` | | thresholds, strengths, [4] each |
    | plif | see `heads.pointwise.PLIF` | T, D | slopes, left, [Q] each |
    """

    family: str
    numbers: tuple[float, ...] = ()  # fixed before training
    tables: tuple[str, ...] = ()  # names of `Pointwise.tensors`, all of one length


class ChunkedHead(Protocol):
    """Describe a head to the losses."""

    num_classes: int

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def tensors(self) -> Named: ...

    def chunk_log_probs(self, features: Tensor, tensors: Named, random_state: Any) -> Tensor: ...

    def chunk_nll(
        self,
        features: Tensor,
        target: Tensor,
        tensors: Named,
        random_state: Any,
        smooth: bool,
    ) -> tuple[Tensor, Tensor | None]: ...

    def chunk_log_norms(self, features: Tensor, tensors: Named, random_state: Any) -> Tensor: ...

    def floats_per_token(self) -> int: ...

    # where there is a fused loss:

    fused: Any  # type[highrank_plugins.losses.fused.FusedLoss], or None without one
    pointwise: Any

    def token_floats(self) -> int: ...

    def token_inputs(self, features: Tensor, tensors: Named, random_state: Any) -> Named: ...
