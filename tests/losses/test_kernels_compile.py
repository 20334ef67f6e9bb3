"""Triton's compiler accepts every kernel: no GPU is needed to make code for one.

The interpreter, which runs the kernels in all other tests, takes more of Python than the compiler.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from highrank_plugins.heads import build_head
from highrank_plugins.losses.kernels import triton as kernels

class NoDevice:
    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    get_current_stream = map_python_to_cpp_type = lambda self, given=None: given

def compile_only(kernel, *arguments, warmup, **options):
    compiled = run(kernel, *arguments, warmup=True, **options)
    print(kernel.fn.__name__, *compiled.asm)

driver.set_active(NoDevice())
run, triton.JITFunction.run = triton.JITFunction.run, compile_only
kernels.check_available = lambda device: None
target = torch.arange(3)
for name, dtype in [("softmax", "float64"), ("mos", "bfloat16"), ("mixtape", "float16")]:
    head = build_head(name, num_classes=5000, feature_dim=4, pointwise="gss")
    features = torch.zeros(3, 4, dtype=getattr(torch, dtype), requires_grad=True)
    for smoothing in (0.0, 0.1):
        head.to(features.dtype).nll(features, target, label_smoothing=smoothing, reduction="sum",
                                    accuracy=smoothing > 0, impl="triton")
"""


@pytest.mark.triton
@pytest.mark.slow
def test_for_a_cuda_device(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in kernels} == {
        "softmax_kernel", "gradient_kernel", "mixture_kernel", "tree_forward_kernel",
        "tree_backward_kernel",
    }  # fmt: skip
    assert all("cubin" in results for _, *results in kernels)
