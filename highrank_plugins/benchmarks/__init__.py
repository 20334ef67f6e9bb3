"""Measure what the layers cost: `highrank bench loss|train|generate`.

A case (`case`, `presets.yaml`) is measured with each implementation or model in a process of its
own (`process`, `child`). The process alternates it with a baseline, so that a noisy machine hurts
both alike. The baseline of losses is `gemm_floor`, the time of their matrix products alone; that of
training steps and translation is the stock Transformer. `report` makes tables, CSV and plots.
"""
