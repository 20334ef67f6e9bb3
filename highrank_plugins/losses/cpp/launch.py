"""The kernels as functions of tensors on a CPU, float32 or float64.

Rows of logits are contiguous; results are written into the tensors given for them.
"""

from __future__ import annotations

from ctypes import c_double, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.cpp.build import Unavailable, library
from highrank_plugins.losses.fused.kernel_passes import Weights

SUFFIX = {torch.float32: "float", torch.float64: "double"}
_POINTER, _SIZE, _NUMBER = c_void_p, c_int64, c_double
_TREE = [*[_POINTER, _SIZE, _SIZE] * 2, _POINTER, *[_SIZE] * 4, c_int]
ARGUMENTS: dict[str, list[Any]] = {
    "softmax": [_POINTER, *[_SIZE] * 3, *[_POINTER] * 3, *[_NUMBER] * 5, *[_POINTER] * 4, c_int],
    "mixture": [_POINTER, *[_SIZE] * 3, *[_POINTER] * 4, *[_NUMBER] * 4, *[_POINTER] * 6, c_int],
    "mix": _TREE,
    "unmix": _TREE,
}


def softmax(
    values: Tensor,
    target: Tensor,
    bent_line: tuple[float, float],
    weights: Weights,
    *,
    bias: Tensor | None,
    factor: Tensor | None,
    nll: Tensor,
    smooth_sum: Tensor | None,
    hits: Tensor | None,
    columns: Tensor | None,
) -> None:
    """Scores [n] of values [n, M]; with `factor` [n] they become their gradient.

    `columns` [threads, M] gets the sum of the gradients of each thread's rows added.
    """
    rows, classes = values.shape
    _call(
        "softmax", values.dtype, values, values.stride(0), rows, classes, bias, target, factor,
        *bent_line, *weights, nll, smooth_sum, hits, columns, threads=_threads(columns),
    )  # fmt: skip


def mixture(
    values: Tensor,
    target: Tensor,
    bent_line: tuple[float, float],
    weights: Weights,
    log_prior: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    nll: Tensor,
    smooth_sum: Tensor | None,
    hits: Tensor | None,
    grad_prior: Tensor,
    underflow: Tensor,
    columns: Tensor | None,
) -> None:
    """Scores [n] of values [n, K, M]; with `scale` [n] they become their gradient.

    `log_prior` and its gradient `grad_prior` are [n, K]. With `smooth_sum`, `underflow` [n] says of
    which tokens nothing else can be trusted. `columns` as in `softmax`.
    """
    tokens, components, classes = values.shape
    _call(
        "mixture", values.dtype, values, tokens, components, classes, bias, target, log_prior,
        scale, *bent_line, weights.on_target, weights.every_class, nll, smooth_sum, hits,
        grad_prior, underflow, columns, threads=_threads(columns),
    )  # fmt: skip


def mix(leaves: Tensor, gates: Tensor, out: Tensor, wide: torch.dtype) -> None:
    """out [n, S] = Σ_j π_j leaf_j of leaves [n, K, S]; gate logits [K − 1, n, S] become σ."""
    _tree("mix", leaves, gates, out, wide)


def unmix(grad: Tensor, leaves: Tensor, gates: Tensor, wide: torch.dtype) -> None:
    """leaves and gates, as `mix` left them, become their gradients, given that of its out."""
    _tree("unmix", leaves, gates, grad, wide)


def _tree(name: str, leaves: Tensor, gates: Tensor, mixed: Tensor, wide: torch.dtype) -> None:
    rows, components, classes = leaves.shape
    _call(
        name, wide, leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
        mixed, mixed.stride(0), rows, classes, components, threads=_threads(None),
    )  # fmt: skip


def _threads(columns: Tensor | None) -> int:
    """All of torch's that have a row of columns."""
    threads = torch.get_num_threads()
    return threads if columns is None else min(threads, len(columns))


def _call(name: str, dtype: torch.dtype, *arguments: Any, threads: int) -> None:
    loaded = library()
    if isinstance(loaded, Unavailable):
        raise ValueError(str(loaded))
    for argument in arguments:
        if isinstance(argument, Tensor):
            _check(argument, dtype)
    function = getattr(loaded, f"{name}_{SUFFIX[dtype]}")  # the same object each time
    if function.argtypes is None:
        function.argtypes, function.restype = ARGUMENTS[name], None
    given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    function(*given, threads)


def _check(tensor: Tensor, dtype: torch.dtype) -> None:
    """What a kernel takes for granted of each tensor, whose memory it reads and writes."""
    rows_contiguous = tensor.dim() == 0 or tensor.size(-1) <= 1 or tensor.stride(-1) == 1
    right = tensor.dtype in (torch.int64, torch.bool, dtype)
    if not (rows_contiguous and right and tensor.device.type == "cpu"):
        raise TypeError(
            f"a kernel needs a tensor on the CPU with contiguous rows of {dtype}, got "
            f"{tensor.dtype} with strides {tensor.stride()} on {tensor.device}"
        )
