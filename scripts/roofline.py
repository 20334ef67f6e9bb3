"""Model the time and memory of a loss on a GPU that this machine may lack: a roofline.

The loss runs on device `meta`, where tensors have sizes and no content. Each operation takes the
longer of two times: its bytes over the memory bandwidth, and its arithmetic over the speed of
matrix products. Of a Triton kernel, the instructions count. Launches, caches and overlap do not
count: the result is a model, not a measurement.

    python -m scripts.roofline mos_ptb --gpu a100

`scripts/whole_step.py` models whole training steps.
"""

from __future__ import annotations

import csv
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from unittest import mock

import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from highrank_plugins.benchmarks.case import CaseError, LossCase
from highrank_plugins.benchmarks.implementations import loss_function
from highrank_plugins.benchmarks.run import loss_cases
from highrank_plugins.cli import as_command, main
from highrank_plugins.cli.options import names
from highrank_plugins.common import formatting

PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm_"}
# Assumed shares of the data sheet's peaks that large operations reach, equal for all GPUs.
BANDWIDTH_SHARE, PRODUCT_SHARE, INSTRUCTION_SHARE = 0.875, 0.7, 0.7


@dataclass(frozen=True)
class Gpu:
    """Hold peaks of a data sheet: bytes, half-precision operations and instructions per second.

    A multiprocessor issues 128 instructions of threads per clock.
    """

    bandwidth: float
    products: float
    instructions: float

    def seconds(self, moved: float, operations: float = 0, instructions: float = 0) -> float:
        """Return the longest of three times: bytes, matrix products, instructions of threads."""
        return max(
            moved / (BANDWIDTH_SHARE * self.bandwidth),
            operations / (PRODUCT_SHARE * self.products),
            instructions / (INSTRUCTION_SHARE * self.instructions),
        )


# From NVIDIA's data sheets (SXM; A100 80GB): dense products in bfloat16, accumulated in float32.
GPUS = {
    "h200": Gpu(4.8e12, 989e12, 132 * 128 * 1.75e9),
    "h100": Gpu(3.35e12, 989e12, 132 * 128 * 1.75e9),
    "a100": Gpu(2.039e12, 312e12, 108 * 128 * 1.41e9),
    "rtx4090": Gpu(1.008e12, 165e12, 128 * 128 * 2.52e9),
}
GpuName = Annotated[Literal["h200", "h100", "a100", "rtx4090"], "GPU to model."]
KERNELS = Path(__file__).parents[1] / "docs" / "benchmarks" / "kernels_sm90.csv"
# Components of the kernel's record: those of a mixture, of its gradient and of a tree.
COMPONENTS = {"softmax_kernel": "1", "gradient_kernel": "2", "mixture_kernel": "9"}
# Operations that read or write only the elements that an index names.
INDEXED = ("gather", "scatter", "scatter_add", "scatter_add_", "scatter_", "index", "index_select")
# Number of first operands whose content an operation does not read.
OVERWRITES = {"zero_": 1, "fill_": 1, "normal_": 1, "copy_": 1}
OVERWRITES |= {"new_full": 1, "new_ones": 1, "new_zeros": 1}
IMPLEMENTATIONS = ("naive", "gathered", "chunked", "fused", "triton")


@cache
def instructions() -> dict[str, dict[str, float]]:
    """Return instructions per logit by kernel and function, for bfloat16 with gradient.

    The larger number counts of a kernel with and without label smoothing.
    """
    found: dict[str, dict[str, float]] = {}
    with KERNELS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kernel, pointwise = row["kernel"], row["pointwise"]
            chosen = ("bfloat16", "yes", COMPONENTS.get(kernel, "4"))
            if (row["dtype"], row["gradient"], row["components"]) == chosen:
                of = found.setdefault(kernel, {})
                of[pointwise] = max(of.get(pointwise, 0.0), float(row["instructions_per_logit"]))
    return found


class RooflineEstimate(NamedTuple):
    """Hold seconds of products, of other operations, and of products alone; bytes at the peak."""

    products: float
    others: float
    gemm_floor: float
    peak: int
    gradients: int


class Seconds(TorchDispatchMode):
    """Add up the time of all operations, on device `meta`, in `products` and `others`."""

    def __init__(self, gpu: Gpu, pointwise: str) -> None:
        super().__init__()
        self.gpu, self.pointwise = gpu, pointwise
        self.products = self.others = 0.0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")
        if function.is_view or name.startswith(("empty", "new_empty", "detach", "_unsafe_view")):
            return result
        given = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if name in PRODUCTS:
            left, right = given[-2:]  # addmm's first argument is the total
            work = 2 * left.numel() * right.size(-1)
            self.products += self.gpu.seconds(_bytes([*given, *made]), work)
        elif name in INDEXED:
            self.others += self.gpu.seconds(2 * min(_bytes([t]) for t in (*given[1:], *made)))
        else:
            read = given[OVERWRITES.get(name, 0) :]
            self.others += self.gpu.seconds(_bytes(read) + _bytes(made))
        return result

    def launch(
        self, kernel: Any, grid: Any, values: torch.Tensor, *others: Any, **tile: int
    ) -> None:
        """Count a kernel instead of starting it; see `kernels.triton.passes.launch`."""
        name = getattr(kernel, "fn", kernel).__name__
        given = dict(zip(kernel.arg_names, (values, *others), strict=False))
        per_logit = instructions()[name]  # torch computes any other function
        issued = per_logit.get(self.pointwise, per_logit["identity"]) * values.numel()
        work = 0
        if name.startswith("tree"):
            operands = [given[n] for n in ("inputs", "weights") if given[n] is not None]
            if operands:  # in each pass
                work = 2 * operands[0].numel() * operands[1].size(0)
            passes = 1 + ("grad" in given)  # leaves and gates become their gradients
            gate_passes = int(given["from_memory"]) + ("grad" in given)
            moved = passes * _bytes([values]) + gate_passes * _bytes([given["gates"]])
            moved += _bytes([*operands, given["grad" if "grad" in given else "out"]])
        else:
            gradient = given["factor"] is not None
            passes = 3 if gradient else 1  # two reads, one write
            if name == "gradient_kernel":
                passes = 2
            elif not gradient:
                issued /= 2
            moved = passes * _bytes([values])
        self.others += self.gpu.seconds(moved, work, issued)


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of tensors; expanded dimensions count once."""
    return sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)


@contextmanager
def counted(seconds: Seconds) -> Iterator[None]:
    """Let `seconds` see all operations and all Triton kernels of a block."""
    with ExitStack() as stack:
        if find_spec("triton") is not None:
            from highrank_plugins.losses.kernels.triton import passes

            stack.enter_context(mock.patch.object(passes, "launch", seconds.launch))
        stack.enter_context(seconds)
        yield


def estimate(case: LossCase, implementation: str, gpu: Gpu) -> RooflineEstimate:
    """Return the model of one step, forward and backward, of a loss in bfloat16."""
    seconds = Seconds(gpu, case.pointwise)
    sizes = peak_of(case, implementation, counted(seconds))
    floor = gpu.seconds(0, sum(6 * a * b * c for a, b, c in case.products()))
    return RooflineEstimate(seconds.products, seconds.others, floor, *sizes)


def require_triton(implementations: list[str]) -> None:
    """Raise CaseError if one of the implementations needs Triton, and it is not installed."""
    if "triton" in implementations and find_spec("triton") is None:
        raise CaseError("--impl triton: triton is not installed; pip install 'triton>=3.4'")


def run_roofline(presets: list[str], implementations: list[str], gpu: str) -> str:
    """Return a Markdown table of models, one line per case and implementation."""
    for name in implementations:
        if name not in IMPLEMENTATIONS:
            raise CaseError(
                f"--impl {name}: the roofline covers only {', '.join(IMPLEMENTATIONS)}; "
                "`highrank bench loss` measures any"
            )
    require_triton(implementations)
    heading = ["case", "implementation", "products, ms", "others, ms", "× gemm_floor"]
    heading += ["peak, MiB", "of which gradients, MiB"]
    rows = []
    for name, case in loss_cases(presets, {"device": "cpu", "dtype": "bfloat16"}, {}).items():
        for implementation in implementations:
            found = estimate(case, implementation, GPUS[gpu])
            times = [f"{1e3 * found.products:.2f}", f"{1e3 * found.others:.2f}"]
            times.append(f"{(found.products + found.others) / found.gemm_floor:.2f}")
            sizes = [f"{size / 2**20:,.0f}" for size in (found.peak, found.gradients)]
            rows.append([name, implementation, *times, *sizes])
    return formatting.table(heading, rows)


class LiveMemory(TorchDispatchMode):
    """Count the bytes of all tensors that operations create, while they live.

    Tensors on device `meta` have sizes and no content: the losses treat this device as a GPU.
    """

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_of(
    case: LossCase, impl: str, observer: AbstractContextManager[None] | None = None
) -> tuple[int, int]:
    """Return the peak of a step above parameters and features, and the bytes of its gradients.

    Memory that the matrix library keeps for itself does not count.
    """
    dtype = getattr(torch, case.dtype)
    with torch.device("meta"):
        head = case.build_head().to(dtype)
        features = torch.empty(case.tokens, case.dim, dtype=dtype, requires_grad=True)
        target = torch.zeros(case.tokens, dtype=torch.int64)
    parameters = list(head.parameters())
    with LiveMemory([features, target, *parameters]) as live, observer or nullcontext():
        loss_function(impl, case)(head, features, target).sum().backward()
    return live.peak, sum(t.nbytes for t in (features, *parameters))


def roofline(
    preset: Annotated[list[str], "Cases or groups of benchmarks/presets.yaml, for `bench loss`."],
    gpu: GpuName = "h200",
    impl: Annotated[
        str, "Implementations, separated by commas: naive, gathered, chunked, fused, triton."
    ] = "naive,fused,triton",
) -> None:
    """Model time and memory of losses on a GPU you do not have, in bfloat16."""
    typer.echo(run_roofline(preset, names("--impl", impl), gpu), nl=False)


if __name__ == "__main__":
    main(as_command(roofline), "python -m scripts.roofline")
