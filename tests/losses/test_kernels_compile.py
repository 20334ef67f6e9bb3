"""Triton's compiler accepts every kernel, and ptxas its registers: neither needs a GPU.

The interpreter, which runs the kernels in all other tests, takes more of Python than the compiler.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, re, subprocess, sys, tempfile
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from highrank_plugins.heads import build_head
from highrank_plugins.losses.kernels.triton import passes

class NoDevice:
    def get_current_target(self):
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_current_device(self):
        return 0

    get_current_stream = map_python_to_cpp_type = lambda self, given=None: given

def ask(cubin, option):
    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr

def in_loops(sass):
    lines = re.findall(r"/\\*([0-9a-f]{4,})\\*/ +(?:@!?U?P\\w+ +)?(\\w[\\w.]*)(.*?);", sass)
    code = [(int(at, 16), name, rest) for at, name, rest in lines]
    jumps = [(int(re.search("0x([0-9a-f]+)", rest)[1], 16), at)
             for at, name, rest in code if name.startswith("BRA") and "0x" in rest]
    return sum(a <= at <= b for a, b in jumps if a < b for at, _, _ in code)

seen = set()

def compile_only(kernel, grid, *arguments, **tile):
    compiled = kernel.run(*arguments, grid=grid, warmup=True, **tile)
    if compiled.hash in seen:
        return
    seen.add(compiled.hash)
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\\d+)", ask(compiled.asm["cubin"], "-res-usage")))
    print(json.dumps({
        "kernel": kernel.fn.__name__, "registers": int(used["REG"]),
        "spilled": int(used["STACK"]) + int(used["LOCAL"]),
        "instructions": in_loops(ask(compiled.asm["cubin"], "-sass")),
        "columns": tile["COLUMNS"] * tile.get("ROWS", 1) // (32 * tile["num_warps"]),
    }))

driver.set_active(NoDevice())
passes.launch = compile_only
for name, classes, dtype, smoothing, batches, options in json.loads(sys.argv[2]):
    with torch.device("meta"):
        head = build_head(name, num_classes=classes, feature_dim=8, bias=False, **options)
        head.to(getattr(torch, dtype))
        for tokens in batches:
            features = torch.empty(tokens, 8, dtype=getattr(torch, dtype), requires_grad=True)
            target = torch.zeros(tokens, dtype=torch.int64)
            # with "sum", float16 looks whether its gradients are finite
            reduction = "none" if dtype == "float16" else "sum"
            out = head.nll(features, target, label_smoothing=smoothing, reduction=reduction,
                           accuracy=dtype != "bfloat16", impl="triton")
            out.loss.sum().backward()
"""
MOST_REGISTERS = 255


def compiled(tmp_path, capability, cases):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(capability), json.dumps(cases)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for kernel in found:
        assert kernel["spilled"] == 0 and kernel["registers"] <= MOST_REGISTERS, kernel
    return found


COVERING = [
    ("softmax", 5000, "float16", 0.1, [32], {"pointwise": "gss"}),
    ("mos", 5001, "float16", 0.1, [32], {"components": 4, "pointwise": "gss"}),
    ("mos", 5000, "bfloat16", 0.0, [32], {"components": 2}),
    ("mixtape", 5000, "bfloat16", 0.1, [32], {"components": 4, "frequent": 2504}),
]


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 120])
def test_every_kernel_compiles_without_spills(capability, tmp_path):
    found = compiled(tmp_path, capability, COVERING)
    assert {kernel["kernel"] for kernel in found} == {
        "softmax_kernel", "gradient_kernel", "mixture_kernel", "tree_forward_kernel",
        "tree_backward_kernel",
    }  # fmt: skip


@pytest.mark.triton
@pytest.mark.slow
def test_instructions_of_a_logit(tmp_path):
    """On sm_90, in both loops: 33.6, 69.3 and 38.4 (K = 15) with Triton 3.9; some room above."""
    wmt = (32768, "bfloat16", 0.1, [64])
    plain, gss, lse, mixture = compiled(
        tmp_path, 90,
        [("softmax", *wmt, {}), ("softmax", *wmt, {"pointwise": "gss"}),
         ("mos", *wmt, {"components": 15})],
    )  # fmt: skip
    assert plain["instructions"] / plain["columns"] <= 37
    assert gss["instructions"] / gss["columns"] <= 76
    assert lse["kernel"] == "softmax_kernel" and mixture["kernel"] == "mixture_kernel"
    assert mixture["instructions"] / mixture["columns"] / 15 <= 42


@pytest.mark.triton
@pytest.mark.slow
def test_batches_of_any_length_share_a_kernel(tmp_path):
    found = compiled(tmp_path, 90, [("softmax", 5000, "bfloat16", 0.1, [31, 32, 33, 47, 64], {})])
    assert len(found) == 1


@pytest.mark.triton
@pytest.mark.long
@pytest.mark.parametrize("components", [2, 4, 9, 15, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_whole_grid(capability, dtype, components, tmp_path):
    cases = [
        ("mos", classes, dtype, smoothing, [32], {"components": components, "pointwise": pointwise})
        for classes in (5000, 5001)
        for smoothing in (0.0, 0.1)
        for pointwise in ("identity", "sigsoftmax", "gss")
    ]
    assert compiled(tmp_path, capability, cases)
