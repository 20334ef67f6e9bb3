"""Test operands, sums, chunks and noise of a GPU, on tensors without memory.

The losses treat device `meta` as a GPU; kernels of Triton are not started there.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.heads import build_head
from highrank_plugins.heads.random_state import NOISE_BLOCK, RandomState
from highrank_plugins.losses import autograd, chunking
from scripts.roofline import peak_of
from tests.largest_tensor import Largest

ATEN = torch.ops.aten
PRODUCTS = {ATEN.mm.default, ATEN.mm.out, ATEN.addmm.out, ATEN.addmm_.default,
            ATEN.mm.dtype_out, ATEN.addmm.dtype_out}  # fmt: skip


class Products(TorchDispatchMode):
    """Record half-precision products of the vocabulary or the contexts: operands and kinds."""

    def __init__(self):
        super().__init__()
        self.operands, self.kinds = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in PRODUCTS:
            matrices = [t for t in (*args, result) if isinstance(t, torch.Tensor) and t.dim() == 2]
            half = [t for t in matrices if t.dtype == torch.bfloat16]
            if any(size > 100 for t in matrices for size in t.shape):
                self.operands += half
                self.kinds.append(function)
        return result


def step(impl, head, classes, dtype=torch.bfloat16, **options):
    with torch.device("meta"):
        built = build_head(head, num_classes=classes, feature_dim=64, **options).to(dtype)
        features = torch.empty(32, 64, dtype=dtype, requires_grad=True)
        target = torch.zeros(32, dtype=torch.int64)
    with Products() as seen:
        built.nll(features, target, label_smoothing=0.1, reduction="sum", impl=impl).loss.backward()
    return seen


CASES = [
    ("softmax", 1001, {}),
    ("mos", 1001, {"components": 3}),
    ("mixtape", 1000, {"components": 4, "frequent": 104, "gate_dim": 16}),
    ("mixtape", 1001, {"components": 4, "frequent": 504, "gate_dim": 16}),
]


@pytest.mark.triton
@pytest.mark.parametrize("impl", ["fused", "triton"])
@pytest.mark.parametrize(("head", "classes", "options"), CASES, ids=str)
def test_operands_of_products_are_aligned_to_16_bytes(head, classes, options, impl):
    seen = step(impl, head, classes, **options)
    assert seen.operands
    for matrix in seen.operands:
        rows = max(matrix.stride())
        assert rows * matrix.element_size() % 16 == 0, (tuple(matrix.shape), matrix.stride())
        assert matrix.storage_offset() * matrix.element_size() % 16 == 0


@pytest.mark.parametrize(("head", "classes", "options"), CASES, ids=str)
def test_gradients_are_added_up_in_float32(head, classes, options):
    """No gradient of a large matrix exists in half precision."""
    seen = step("fused", head, classes, **options)
    each = {"softmax": 1, "mos": 1, "mixtape": 3}[head]  # in a chunk
    contexts = int(head != "softmax")  # in a block, of which there is one
    # the first chunk adds to nothing
    assert seen.kinds.count(ATEN.mm.dtype_out) == each + contexts
    added = seen.kinds.count(ATEN.addmm.dtype_out)
    assert added in (0, each)
    # the others make logits and gradients of contexts
    assert seen.kinds.count(ATEN.mm.out) == 2 * (each + added)


def test_products_add_in_float32_only_where_the_gpu_can(monkeypatch):
    for capability, can in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert autograd.products_add_in_float32(torch.device("cuda", 0)) is can
    assert not autograd.products_add_in_float32(torch.device("cpu"))


@pytest.mark.parametrize("is_first", [False, True])
def test_all_ways_of_adding_a_product_agree(monkeypatch, is_first):
    """Replace products with `out_dtype`, which torch lacks for float64, by their definition."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(9, 5, generator=generator), torch.randn(9, 4, generator=generator)
    grad, rows = (t.bfloat16() for t in wide)
    before = torch.full((5, 4), torch.nan if is_first else 1.0)  # overwritten, or added to
    want = before.nan_to_num(0) + grad.float().t() @ rows.float()

    def total(grad, rows, dtype=torch.float32):
        gradients = autograd.GradientSum(before.to(dtype, copy=True))
        gradients.is_empty = is_first
        gradients.add_product(grad, rows)
        return gradients.total.float()

    def mm(a, b, *, out_dtype, out):
        assert out_dtype == torch.float32
        return out.copy_(a.to(out_dtype) @ b.to(out_dtype))

    def addmm(total, a, b, *, out_dtype, out):
        assert out is total and out_dtype == torch.float32
        return out.copy_(total + a.to(out_dtype) @ b.to(out_dtype))

    torch.testing.assert_close(total(grad.float(), rows.float()), want)
    torch.testing.assert_close(total(grad, rows), want, rtol=2e-2, atol=2e-2)
    monkeypatch.setattr(autograd, "products_add_in_float32", lambda device: True)
    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(torch, "addmm", addmm)
    torch.testing.assert_close(total(grad, rows), want)
    torch.testing.assert_close(total(grad, rows, torch.float64), want, rtol=2e-2, atol=2e-2)


def test_half_precision_products_are_added_up_in_float32():
    """Add as often as a half-precision sum, with its 8 bits, would stop growing."""
    shapes = {"features": (6, 5), "latent.weight": (4, 5), "latent.bias": (4,)}
    leaves = {name: torch.ones(s).bfloat16().requires_grad_() for name, s in shapes.items()}
    x = leaves.pop("features")
    # memory may hold NaN at the start
    sums = {n: autograd.GradientSum(torch.full(t.shape, torch.nan)) for n, t in leaves.items()}
    tensors = autograd.SummedTensors(leaves, x, sums, torch.bfloat16)
    grad = torch.tensor([1.0, *[1 / 256] * 5]).bfloat16().unsqueeze(-1).expand(-1, 4)
    for _ in range(1000):
        out = autograd.linear_of(x, tensors, "latent")
        torch.autograd.grad(out, [*leaves.values()], grad, allow_unused=True)
    want = 1000 * (1 + 5 / 256)
    for name, rtol in (("latent.weight", 8e-3), ("latent.bias", 1e-6)):
        total = sums[name].total
        torch.testing.assert_close(total, torch.full_like(total, want), rtol=rtol, atol=0)


# MiB above parameters and features. The sums of gradients, in float32, are 144 and 204 of them, the
# chunk 128. They were 982, 1774, 467 and 577 when a chunk was 512 MiB and smoothing not counted.
MOST = {("softmax", "fused"): 275, ("mos", "fused"): 410, ("softmax", "triton"): 295,
        ("mos", "triton"): 370}  # fmt: skip


@pytest.mark.triton
@pytest.mark.parametrize(("head", "impl"), MOST)
def test_peak_memory_stays_below_its_bound(head, impl):
    """Measure at the size of wmt_en_de, with K = 15 for a mixture."""
    case = LossCase(head=head, tokens=4096, dim=1024, classes=32768, components=15,
                    label_smoothing=0.1, bias=False, dtype="bfloat16")  # fmt: skip
    peak, gradients = peak_of(case, impl)
    assert 2 * gradients < peak <= MOST[head, impl] * 2**20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_noise_exists_for_one_block_of_tokens(dtype):
    """Half precision has the same numbers, rounded, and so do parts and rows with memory behind."""
    state = RandomState(noise_sd=0.1, noise_seed=1, start=10, stop=10 + 5 * NOISE_BLOCK)
    gates_NJS = torch.zeros(5 * NOISE_BLOCK, 3, 7, dtype=dtype)
    want = state.add_noise(gates_NJS)
    filled_JNS = torch.ones(3, 5 * NOISE_BLOCK, 7, dtype=dtype)
    with Largest() as seen:
        assert state.fill_with_noise(filled_JNS)
    assert 4 * seen.numel <= filled_JNS[0].nbytes
    assert torch.equal(filled_JNS.transpose(0, 1), want.to(dtype))
    assert abs(want.std().item() - 0.1) < 0.01
    part_JNS = torch.empty(3, NOISE_BLOCK, 8, dtype=dtype)[..., :7]
    assert state.fill_with_noise(part_JNS, first=20)
    assert torch.equal(part_JNS, filled_JNS[:, 20 : 20 + NOISE_BLOCK])


@pytest.mark.triton
def test_a_function_that_no_kernel_knows_is_computed_in_blocks(monkeypatch):
    case = LossCase(head="softmax", tokens=4096, dim=256, classes=32768, bias=False,
                    dtype="bfloat16", pointwise="monotone_mlp")  # fmt: skip
    by_blocks, _ = peak_of(case, "triton")
    monkeypatch.setitem(chunking.BLOCK_MEMORY, "cuda", 2**40)
    at_once, _ = peak_of(case, "triton")
    assert at_once > 2 * by_blocks
