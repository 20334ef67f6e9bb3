"""Measure models as the papers do, by functions on tensors that load scipy only when called.

Wrong input is a ValueError that names the argument and, in a matrix, the block and the row.
"""
