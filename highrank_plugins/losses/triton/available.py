"""Whether the kernels can run here, said before anything is computed."""

from __future__ import annotations

import torch

INSTEAD = "or choose impl='fused' (--head-loss fused)"


def check_available(device: torch.device) -> None:
    """Nothing, or an error that names the remedy.

    Raises:
        ValueError: triton cannot be imported, or tensors lie on a CPU and the kernels are compiled
            ones, not those of triton's interpreter.
    """
    try:
        import triton
    except ImportError as error:
        raise ValueError(
            f"impl: 'triton' needs the package triton ({error}); install it "
            f"(pip install 'triton>=3.4'), {INSTEAD}"
        ) from error
    from highrank_plugins.losses.triton.kernels.softmax import softmax_kernel

    if device.type == "cpu" and isinstance(softmax_kernel, triton.JITFunction):
        raise ValueError(
            "impl: 'triton' needs a GPU, the features lie on the CPU; move the model there, "
            f"set TRITON_INTERPRET=1 before python starts to try the kernels slowly, {INSTEAD}"
        )
