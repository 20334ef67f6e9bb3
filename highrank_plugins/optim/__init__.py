"""Optimizers and learning-rate schedules for fairseq."""
