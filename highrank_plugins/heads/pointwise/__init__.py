"""Register pointwise functions by name, one module each."""

from __future__ import annotations

from highrank_plugins.heads.pointwise.base import POINTWISE, Identity, Pointwise, register_pointwise
from highrank_plugins.heads.pointwise.caps import SigmoidCap, Softcap
from highrank_plugins.heads.pointwise.gss import GeneralizedSigSoftmax, SigSoftmax
from highrank_plugins.heads.pointwise.monotone_mlp import MonotoneMLP
from highrank_plugins.heads.pointwise.multimax import MultiMax
from highrank_plugins.heads.pointwise.plif import PLIF

__all__ = ["PLIF", "POINTWISE", "GeneralizedSigSoftmax", "Identity", "MonotoneMLP", "MultiMax",
           "Pointwise", "SigSoftmax", "SigmoidCap", "Softcap", "build_pointwise",
           "register_pointwise"]  # fmt: skip

build_pointwise = POINTWISE.build
