"""Measure what the layers cost: `highrank bench loss|train`.

A case (`case`, `presets.yaml`) is measured with each implementation or model in a process of its
own (`measuring`). The process alternates it with a baseline, so that a noisy machine hurts
both alike. The baseline of losses is `gemm_floor`, the time of their matrix products alone; that of
training steps and translation is the stock Transformer. `rows` makes tables and CSV.
"""
