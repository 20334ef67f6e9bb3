"""Exact negative log-likelihoods of output layers, at several levels that give the same numbers.

`reference` is the truth: all log-probabilities, then a gather. `chunked` holds one chunk of tokens
at a time. A level is a function (plan) → LossOutput, see `plan.LossPlan`.
"""

from __future__ import annotations

from highrank_plugins.losses.levels import LEVELS, compute_nll, level_here
from highrank_plugins.losses.plan import LossOutput

__all__ = ["LEVELS", "LossOutput", "compute_nll", "level_here"]
