"""Triton's compiler accepts every kernel, and ptxas its registers: neither needs a GPU.

The interpreter, which runs the kernels in all other tests, takes more of Python than the compiler.
"""

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# scripts/test.sh installs it there, apart from the one that torch has
OLDEST = Path(os.environ.get("HIGHRANK_OLDEST_TRITON", ROOT / ".venv" / "triton_oldest"))
MOST_REGISTERS = 255
# ptxas puts two words of these kernels aside, to start more programs at once: with GSS before its
# loops, with PLIF for sm_80 alone, or for sm_120 in a mixture with weights, with MultiMax for K = 9
# and few classes
SPILLED = {("softmax_kernel", function, "float32"): 8 for function in ("gss", "plif")} | {
    ("mixture_kernel", function, dtype): 8
    for function in ("multimax", "plif")
    for dtype in ("float32", "bfloat16", "float16")
}  # bytes


KEY = ["kernel", "head", "components", "pointwise", "dtype", "smoothing", "gradient"]


def compiled(tmp_path, capability, cases, *words, may_spill=(), path=""):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "kernel_costs.py", "--capability", str(capability),
         "--cases", json.dumps(cases), *words, "--no-instructions"],
        cwd=ROOT, env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path),
                       "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert found
    for kernel in found:
        most = SPILLED.get((kernel["kernel"], kernel["pointwise"], kernel["dtype"]), 0)
        assert kernel["kernel"] in may_spill or int(kernel["spilled"]) <= most, kernel
        assert int(kernel["registers"]) <= MOST_REGISTERS, kernel
    return found


HEADS = [("softmax", 1), ("mos", 2), ("mos", 4), ("mos", 9), ("mos", 15)]
POINTWISE = ["identity", "sigsoftmax", "gss", "softcap", "sigmoid_cap", "multimax", "plif"]
DTYPES = ["float32", "bfloat16", "float16"]
SMOOTHING = [0.0, 0.1]
CLASSES = [5008, 5001]  # without and with memory behind the rows of a chunk
CAPABILITIES = [80, 90, 120]


def pairs():
    """Return (capability, case) such that each choice meets each other choice in some case."""
    found = []
    for i, (head, components) in enumerate(HEADS):
        for j, pointwise in enumerate(POINTWISE):
            options = {"pointwise": pointwise} | (
                {"components": components} if components > 1 else {}
            )
            case = (head, CLASSES[(i + j // 2) % 2], DTYPES[(i + j) % 3], SMOOTHING[(i + j) % 2],
                    [32], options)  # fmt: skip
            found.append((CAPABILITIES[(i + 2 * j) % 3], case))
    for i, components in enumerate((2, 4, 8, 16)):
        # in half precision and with few components, the tree's kernels compute the gates
        options = {"components": components, "frequent": 2496, "gate_dim": 128}
        for j, dtype in enumerate(DTYPES):
            case = ("mixtape", CLASSES[(i + j) % 2], dtype, 0.0, [32], options)
            found.append((CAPABILITIES[(i + j) % 3], case))
    largest = ("mixtape", CLASSES[0], "float64", 0.0, [32], options)
    without_gates = ("mixtape", CLASSES[0], "bfloat16", 0.0, [32],
                     {"components": 4, "frequent": 2500, "gate_dim": 16})  # fmt: skip
    return [*found, (80, largest), (90, without_gates)]


@pytest.mark.triton
@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--weights",)], ids=str)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_compile_without_spills(capability, words, tmp_path):
    compiled(tmp_path, capability, [case for at, case in pairs() if at == capability], *words)


LENGTHS = [32, *sorted(random.Random(1).sample(range(1, 4097), 150))]  # of batches
COVERING = [
    ("softmax", 5000, "float16", 0.1, LENGTHS, {"pointwise": "gss"}),
    ("mos", 5001, "float16", 0.1, LENGTHS, {"components": 4, "pointwise": "gss"}),
    ("mos", 5000, "bfloat16", 0.0, LENGTHS, {"components": 2, "pointwise": "softcap"}),
    ("mixtape", 5000, "bfloat16", 0.1, LENGTHS,
     {"components": 4, "frequent": 2496, "gate_dim": 128}),
    # too wide for the shared memory of a program that multiplies
    ("mixtape", 5000, "bfloat16", 0.1, [32], {"components": 2, "frequent": 2496, "gate_dim": 256}),
]  # fmt: skip


def promised():
    """Return the oldest and the first that is not promised."""
    return re.search(r'"triton>=(.+?),<(.+?)"', (ROOT / "setup.py").read_text()).groups()


def test_the_tritons_that_are_promised_are_those_that_are_tried():
    files = (ROOT / "requirements" / f"{name}.txt" for name in ("triton_oldest", "triton"))
    oldest, newest = (re.search(r"^triton==(.+)$", f.read_text(), re.M)[1] for f in files)
    least, beyond = promised()
    assert Version(oldest) == Version(least)
    assert Version(newest).release[:2] == (3, Version(beyond).minor - 1)


without_oldest = pytest.mark.skipif(
    not OLDEST.is_dir(), reason="needs requirements/triton_oldest.txt, apart"
)


@pytest.mark.triton
@pytest.mark.parametrize("path", ["", pytest.param(OLDEST, marks=without_oldest)], ids=str)
def test_a_kernel_compiles_with_each_triton(path, tmp_path):
    """Try one without loops over components; all others are long."""
    case = ("softmax", 5001, "bfloat16", 0.0, [32], {})
    (kernel,) = compiled(tmp_path, 90, [case], path=path)
    assert kernel["kernel"] == "softmax_kernel"


@pytest.mark.triton
@pytest.mark.long
@pytest.mark.parametrize("word", ["--accuracy", "--weights"])
def test_every_kernel_compiles_twice_at_most(word, tmp_path):
    found = compiled(tmp_path, 90, COVERING, word)
    kernels = {kernel["kernel"] for kernel in found} | {"gradient_kernel"}  # hard targets have it
    assert kernels == {
        "softmax_kernel", "gradient_kernel", "mixture_kernel", "tree_forward_kernel",
        "tree_backward_kernel",
    }  # fmt: skip
    # whatever the length of a batch: training does not wait for the compiler again and again
    kinds = Counter(tuple(kernel[name] for name in KEY) for kernel in found)
    assert max(kinds.values()) <= 2


@pytest.mark.long
@without_oldest
def test_every_kernel_compiles_with_the_oldest_triton(tmp_path):
    """It is the oldest that setup.py promises; trees of gates may spill registers."""
    least, _ = promised()
    cases = [(*case[:4], [32], case[5]) for case in COVERING]
    found = compiled(tmp_path, 90, cases, "--accuracy", may_spill=["tree_backward_kernel"],
                     path=OLDEST)  # fmt: skip
    assert {kernel["triton"].removesuffix(".0") for kernel in found} == {least}
    assert len({kernel["kernel"] for kernel in found}) == 5
