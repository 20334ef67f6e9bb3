"""Measure models as the papers do, by functions on tensors that load scipy only when called.

What would give a wrong number, such as NaN, is a ValueError that names the argument, the block and
the row. Shapes are left to torch.
"""
