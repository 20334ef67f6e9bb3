"""Provide sets of kernels: the elementwise passes of a fused loss over a chunk of logits.

`torch.Kernels` is one of them, and says what a set does; `cpp` and `triton` replace passes. Matrix
products are torch's with all of them.
"""
