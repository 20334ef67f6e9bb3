"""Define an optimizer and a learning-rate schedule for fairseq."""

from highrank_plugins.optim.averaged_sgd import non_monotone_trigger

__all__ = ["non_monotone_trigger"]
