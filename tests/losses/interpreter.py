"""Triton's interpreter as the tests need it: it rounds as a GPU does, and wastes less time."""

import functools

import numpy as np
import pytest
import torch


def mend(patch: pytest.MonkeyPatch) -> None:
    round_to_bfloat16(patch)
    prepare_language_once(patch)


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


def prepare_language_once(patch: pytest.MonkeyPatch) -> None:
    """Replace triton.language once for a kernel's device functions: a third of the time."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    def prepare_once(function):
        if tl.core.is_builtin(tl.load):
            return prepare(function)
        return interpreter._LangPatchScope()

    patch.setattr(interpreter, "_patch_lang", prepare_once)
    # makes a table at each call: 7 % of the time
    patch.setattr(interpreter, "_get_np_dtype", functools.cache(interpreter._get_np_dtype))
