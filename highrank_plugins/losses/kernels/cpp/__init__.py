"""Compiled kernels for CPUs: a thread takes a row from its logits to their gradient, in cache."""
