"""Compile the Triton kernels for a GPU that need not be present, and count their resources.

    .venv/bin/python scripts/kernel_costs.py > docs/benchmarks/kernels_sm90.csv

prints a line of CSV for every kernel × pointwise function × dtype × label smoothing × K, as the
losses launch it: registers of a thread, bytes that it spills to memory, and instructions per logit.
The instructions are those of the loops, of all passes over a row; a kernel without a loop counts
whole. This takes fifteen minutes on one core. `--cases` compiles others: JSON, a list of [head,
classes, dtype, smoothing, [tokens …], options]. A kernel that several cases share is printed once.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from highrank_plugins.heads import build_head
from highrank_plugins.losses import targets
from highrank_plugins.losses.kernels.triton import passes

DTYPES = ("float32", "bfloat16", "float16")
SMOOTHING = (0.0, 0.1)
# functions with kernels; torch computes all others
POINTWISE = ("identity", "sigsoftmax", "gss", "softcap", "sigmoid_cap", "multimax", "plif")
CLASSES = 32768
# Bytes of shared memory that a program may use on the smallest GPUs from sm_80 on: 86, 89, 120.
MOST_SHARED = 99 * 1024
COLUMNS = ["kernel", "head", "components", "pointwise", "dtype", "smoothing", "gradient", "classes"]
COLUMNS += ["registers", "spilled", "instructions_per_logit", "triton"]


class NoDevice:
    """Represent a GPU of some compute capability; kernels are compiled for it, not started."""

    get_current_stream = map_python_to_cpp_type = staticmethod(lambda given=None: given)

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0


class Recorder:
    """Compile instead of launch, and print a line for each kernel that is new."""

    def __init__(self, counts: bool) -> None:
        self.counts = counts  # instructions; to disassemble takes longer than some compilations
        self.case: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        self.writer.writeheader()

    def __call__(self, kernel: Any, grid: Any, *arguments: Any, **tile: int) -> None:
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **tile)
        if compiled.hash in self.seen:
            return
        self.seen.add(compiled.hash)
        name = kernel.fn.__name__
        if compiled.metadata.shared > MOST_SHARED:
            sys.exit(
                f"{name} of {self.case} takes {compiled.metadata.shared:,} bytes of shared memory, "
                f"but some GPUs have {MOST_SHARED:,}: make its tile smaller (losses/kernels/triton)"
            )
        given = dict(zip(kernel.arg_names, arguments, strict=False))
        cubin = compiled.asm["cubin"]
        used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", inspect(cubin, "-res-usage")))
        # columns of a thread; a mixture or a tree has K logits in each
        logits = tile["COLUMNS"] * tile.get("ROWS", 1) / (32 * tile["num_warps"])
        if name not in ("softmax_kernel", "gradient_kernel"):
            logits *= self.case["components"]
        per_logit: float | None = None
        if self.counts:
            per_logit = round(instructions(inspect(cubin, "-sass")) / logits, 1)
        row = self.case | {
            "kernel": name,
            "gradient": "yes" if given.get("factor", 0) is not None else "no",
            "registers": int(used["REG"]),
            "spilled": int(used["STACK"]) + int(used["LOCAL"]),
            "instructions_per_logit": per_logit,
            "triton": triton.__version__,
        }
        self.writer.writerow(row)
        sys.stdout.flush()


def inspect(cubin: bytes, option: str) -> str:
    """Return what cuobjdump, which comes with Triton, says about machine code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def instructions(sass: str) -> int:
    """Return the number of instructions in loops, or of all where there is no loop."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/ +(?:@!?U?P\w+ +)?(\w[\w.]*)(.*?);", sass)
    code = [(int(at, 16), name, rest) for at, name, rest in lines]
    jumps = [
        (int(re.findall("0x([0-9a-f]+)", rest)[0], 16), at)
        for at, name, rest in code
        if name.startswith("BRA") and "0x" in rest
    ]
    end = next((at for at, name, _ in reversed(code) if name == "EXIT"), 0)
    # a jump to itself pads the space after the last instruction
    loops = [(a, b) for a, b in jumps if a < b]
    inside = sum(any(a <= at <= b for a, b in loops) for at, _, _ in code)
    return inside or sum(at <= end for at, _, _ in code)


def all_cases() -> list[list[Any]]:
    """Return the cases of docs/benchmarks/kernels_sm90.csv."""
    heads: list[tuple[str, dict[str, Any]]] = [("softmax", {})]
    heads += [("mos", {"components": components}) for components in (2, 4, 9, 15)]
    cases: list[list[Any]] = [
        [head, CLASSES, dtype, smoothing, [64], {**options, "pointwise": pointwise}]
        for head, options in heads
        for pointwise in POINTWISE
        for dtype in DTYPES
        for smoothing in SMOOTHING
    ]
    cases += [
        ["mixtape", CLASSES, dtype, 0.0, [64], {"components": components, "frequent": CLASSES // 2}]
        for components in (2, 4, 8, 16)
        for dtype in DTYPES
    ]
    return cases


def compile_cases(cases: list[list[Any]], accuracy: bool, weights: bool, counts: bool) -> None:
    """Run the losses of `cases` on device meta, and print the kernels that they would launch."""
    recorder = Recorder(counts)
    vars(passes)["launch"] = recorder
    for head_name, classes, dtype, smoothing, batches, options in cases:
        recorder.case = {
            "head": head_name, "components": options.get("components", 1), "dtype": dtype,
            "pointwise": options.get("pointwise", "identity"), "smoothing": smoothing,
            "classes": classes,
        }  # fmt: skip
        with torch.device("meta"):
            head = build_head(
                head_name, num_classes=classes, feature_dim=8, bias=False, **options
            ).to(getattr(torch, dtype))
            for tokens in batches:
                features = torch.empty(tokens, 8, dtype=getattr(torch, dtype), requires_grad=True)
                target: Any = torch.zeros(tokens, dtype=torch.int64)
                if weights:
                    target = targets.labels(target, smoothing)
                # with "sum", float16 would check whether gradients are finite
                out = head.nll(
                    features, target, label_smoothing=0.0 if weights else smoothing,
                    reduction="none" if dtype == "float16" else "sum", accuracy=accuracy,
                    impl="triton",
                )  # fmt: skip
                out.loss.sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--capability", type=int, default=90, help="compute capability × 10; an H100 has 90")
    add("--cases", type=json.loads, help="list of cases as JSON, instead of the whole table")
    add("--accuracy", action="store_true", help="also find the most probable class")
    add("--weights", action="store_true", help="learn from weights of all classes")
    add("--no-instructions", action="store_true", help="leave their column empty, in half the time")
    options = parser.parse_args()
    driver.set_active(NoDevice(options.capability))
    counts = not options.no_instructions
    compile_cases(options.cases or all_cases(), options.accuracy, options.weights, counts)


if __name__ == "__main__":
    main()
