"""Regularise the activations of recurrent networks (Merity et al. 2017), in torch alone."""

from torch import Tensor

from highrank_plugins.heads.checks import widen


def activation_penalty(dropped: Tensor) -> Tensor:
    """Return AR: the mean square of activations after dropout, of any shape; at least float32."""
    return widen(dropped).square().mean()


def temporal_penalty(raw: Tensor) -> Tensor:
    """Return TAR: the mean square of raw[t+1] − raw[t] of outputs before dropout [T, B, d].

    It is at least float32. A single time step has no difference: 0.
    """
    raw = widen(raw)
    if raw.size(0) < 2:
        return raw.new_zeros(())
    return (raw[1:] - raw[:-1]).square().mean()
