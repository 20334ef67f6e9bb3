"""Summarise a spectrum as the papers do: ranks, entropy, decay."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def press_tolerance(largest: float, shape: tuple[int, int], dtype: torch.dtype) -> float:
    """Return ½ √(m + n + 1) σ_max eps(dtype) for a matrix m × n   (Press et al. 2007, §2.6)."""
    return 0.5 * math.sqrt(shape[0] + shape[1] + 1) * largest * torch.finfo(dtype).eps


def press_rank(singular_values: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Count the singular values above ½ √(m + n + 1) σ_max eps(dtype).

    Press et al. 2007, as Yang et al. 2018 and Parthiban et al. 2021 use it, with eps of float32.
    The number depends on dtype: state it with the rank.

    Args:
        singular_values: [min(m, n)], in any order.
        shape: (m, n) of the matrix.
        dtype: precision of the matrix and of its decomposition.
    Raises:
        ValueError: no, negative or NaN singular values, more than the shape has, integer dtype.
    """
    s = _checked(singular_values)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating-point dtype, got {dtype}")
    if s.numel() > min(shape):
        raise ValueError(f"a matrix {tuple(shape)} has {min(shape)} singular values, got {len(s)}")
    return int((s > press_tolerance(float(s.max()), shape, dtype)).sum())


def effective_rank(singular_values: Tensor, eps: float) -> int:
    """Return the least k with Σ_{i≤k} σ_i² ≥ (1 − ε) Σ_i σ_i²   (Parthiban et al. 2021), or 0.

    Args:
        singular_values: [n], in any order.
        eps: ε in (0, 1).
    Raises:
        ValueError: ε outside, or no, negative or NaN singular values.
    """
    if not 0 < eps < 1:
        raise ValueError(f"eps must lie in (0, 1), got {eps}")
    squares = _checked(singular_values).sort().values.square()
    left_out = squares.cumsum(0)  # adds the small ones first, to keep all digits for a small ε
    return len(squares) - int((left_out <= eps * left_out[-1]).sum())


def spectral_entropy(singular_values: Tensor) -> float:
    """Return H = −Σ_i p_i log p_i in nats, p_i = σ_i / Σ_j σ_j.

    e^H is the effective rank of Roy and Vetterli 2007, between 1 and n; log n − H is the
    divergence of p from a flat spectrum, which Godey et al. 2024 follow along training.

    Raises:
        ValueError: no, negative or NaN singular values, or all of them 0.
    """
    s = _checked(singular_values)
    if not s.any():
        raise ValueError("all singular values are 0: the spectrum has no entropy")
    return float(torch.special.entr(s / s.sum()).sum())


def spectral_decay(singular_values: Tensor, first: int = 1, last: int | None = None) -> float:
    """Return α of the power law σ_i² ∝ i^−α, by least squares of log σ_i² on log i.

    Stringer et al. 2019 and Agrawal et al. 2022 (α-ReQ) use this exponent; 0 is a flat spectrum.

    Args:
        singular_values: [n], in any order.
        first, last: the range of i, from 1 to n, that the line is fitted to.
    Raises:
        ValueError: fewer than two values in the range, or one that is 0.
    """
    s = _checked(singular_values).sort(descending=True).values
    last = len(s) if last is None else last
    if not 1 <= first < last <= len(s):
        raise ValueError(
            f"first and last must satisfy 1 ≤ first < last ≤ {len(s)}, got {first} and {last}"
        )
    part = s[first - 1 : last]
    if part[-1] == 0:
        raise ValueError(
            f"singular value {first + int((part > 0).sum())} is 0, which no power law can "
            "fit: set last, e.g. to the Press rank"
        )
    x = torch.arange(first, last + 1, dtype=s.dtype).log()
    x = x - x.mean()
    return -float((x * part.square().log()).sum() / x.square().sum())


def _checked(singular_values: Tensor) -> Tensor:
    s = torch.as_tensor(singular_values).detach().double().cpu()
    if s.dim() != 1 or not s.numel():
        raise ValueError(f"singular_values: expected [n], n ≥ 1, got shape {tuple(s.shape)}")
    if not (s.isfinite() & (s >= 0)).all():
        raise ValueError("singular_values: an entry is NaN, infinite or negative")
    return s
