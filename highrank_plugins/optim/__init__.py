"""Define optimizers for fairseq, and when averaging begins."""

from highrank_plugins.optim.averaged_sgd import non_monotone_trigger

__all__ = ["non_monotone_trigger"]
