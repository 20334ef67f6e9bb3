"""Measure what the layers cost: `highrank bench loss|train|generate`.

A case (`case`, `presets.yaml`) is measured with each contender in a process of its own (`process`,
`child`), which alternates the contender with a baseline, so that a noisy machine hurts both alike.
Losses are set against the floor (`gemm_floor`), the time of their matrix products alone; training
steps and translation against the stock Transformer. `report` makes tables, CSV and plots.
"""
