"""Triton kernels on chunks of logits, in place; `launch` calls them. Importing these needs triton.

A program reads a tile of rows × columns at a time and computes in float32 (float64 for float64),
whatever the dtype of the chunk. Offsets of rows are 64 bits wide: a chunk may have more than 2^31
numbers.
"""
