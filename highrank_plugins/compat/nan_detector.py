"""A translation model whose training diverges ends in `StopIteration`.

What breaks: gradients that are NaN or infinite end a training run of any encoder and decoder in a
traceback of torch whose last line is `StopIteration`. `gradients are Nan/Inf` is not printed.
Why: fairseq runs the batch again under `NanDetector`, whose hooks on backward passes
(`register_backward_hook`) need modules that return tensors. Encoders return a dictionary of lists.
What we do: watch the gradients of the tensors in a module's output, however they are nested. This
is what those hooks were shown.
Delete when: `NanDetector` takes such modules.
"""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.nan_detector import NanDetector
from torch.utils._pytree import tree_leaves

from highrank_plugins.common.patching import replaces


@replaces(NanDetector, "add_hooks")
def add_hooks(stock: Callable, detector: NanDetector, module: Any) -> None:
    """Watch the output of a module, and its gradients."""
    backward, detector.backward = detector.backward, False
    stock(detector, module)
    detector.backward = backward
    if not backward:
        return

    def watch_gradients(module: Any, _inputs: Any, output: Any) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: detector.bhook_fn(module, (), gradient))

    detector.bhooks.append(module.register_forward_hook(watch_gradients))
