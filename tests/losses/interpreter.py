"""Triton's interpreter as the tests need it: it rounds as a GPU does, and wastes less time."""

import numpy as np
import pytest
import torch


def mend(patch: pytest.MonkeyPatch) -> None:
    round_to_bfloat16(patch)
    multiply_bfloat16(patch)
    prepare_language_once(patch)
    find_dtypes_once(patch)


def round_to_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Round float32 to the nearest even bfloat16; the interpreter cuts off."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cut_off = InterpreterBuilder.cast_impl

    def cast(self, source, dtype):
        if source.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
            numbers = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return TensorHandle(numbers.view(torch.uint16).numpy(), tl.bfloat16)
        return cut_off(self, source, dtype)

    patch.setattr(InterpreterBuilder, "cast_impl", cast)


def multiply_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Multiply bfloat16 matrices as float32; the interpreter takes their bits for integers."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *others):
        if a.dtype.scalar == tl.bfloat16:
            a, b = (self.cast_impl(x, tl.float32) for x in (a, b))
        return multiply(self, a, b, *others)

    patch.setattr(InterpreterBuilder, "create_dot", create_dot)


def prepare_language_once(patch: pytest.MonkeyPatch) -> None:
    """Replace triton.language once for a kernel's device functions: a third of the time."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    languages_of: dict[str, list] = {}

    def prepare_once(function):
        module = function.__module__
        if module not in languages_of:
            names = function.__globals__.values()
            languages_of[module] = [m for m in names if m is tl or m is tl.core]
        if any(tl.core.is_builtin(m.load) for m in languages_of[module]):
            return prepare(function)
        return interpreter._LangPatchScope()

    patch.setattr(interpreter, "_patch_lang", prepare_once)


def find_dtypes_once(patch: pytest.MonkeyPatch) -> None:
    """Keep which NumPy dtype a type has; the interpreter makes a table at each call."""
    from triton.runtime import interpreter

    find, found = interpreter._get_np_dtype, {}

    def find_once(kind):
        name = kind.scalar.name
        if name not in found:
            found[name] = find(kind)
        return found[name]

    patch.setattr(interpreter, "_get_np_dtype", find_once)
