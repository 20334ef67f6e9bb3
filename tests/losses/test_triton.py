"""`triton` beyond what every implementation must do: its tiles, and when `auto` takes it."""

import errno
import logging
import math
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.heads.mixtures import MixtureOfSoftmaxes
from highrank_plugins.losses import mixtape, trust
from highrank_plugins.losses import nll as choice
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.kernels.compiled import IDENTITY
from highrank_plugins.losses.kernels.triton import tiles
from highrank_plugins.losses.plan import LossPlan
from tests.heads.cases import MIXTAPE, MOS, PRODUCT, SOFTMAX, STRUCTURES, make_features
from tests.heads.test_values import extreme
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS, compare, inputs, run

pytestmark = pytest.mark.triton
TRITON = "highrank_plugins.losses.kernels.triton"


@pytest.mark.parametrize("columns, size", [(4096, 4096), (8, 32), (16, 16)], ids=str)
@pytest.mark.parametrize("case", [*STRUCTURES, MIXTAPE.with_options(components=8)], ids=str)
def test_any_tile_gives_the_same_numbers(case, columns, size, monkeypatch):
    """Try one tile for all, tiles of some rows, and tiles of part of one row."""
    monkeypatch.setattr(tiles, "COLUMNS", columns)
    monkeypatch.setattr(tiles, "SIZE", size)
    monkeypatch.setattr(tiles, "TREE_SIZE", size)
    head, features = inputs(case, classes=37)
    compare(head, features, TARGET, "triton", reduction="sum", **FULL)


@pytest.mark.parametrize("case, tile", [
    (MIXTAPE.with_options(components=2, frequent=16), (64, 128, 4)),
    (MIXTAPE.with_options(frequent=16, gate_biases="none", gate_dim=20), (64, 128, 4)),
    (MIXTAPE.with_options(frequent=32, gate_noise=0.7), (4, 32, 2)),
], ids=str)  # fmt: skip
def test_gates_that_the_kernel_computes_match(case, tile, monkeypatch):
    """Let it multiply in float64, too; with tiles of several tokens, and blocks of leaves."""
    monkeypatch.setattr(f"{TRITON}.passes.GATED_DTYPES", {torch.float64})
    for name, size in zip(("ROWS", "COLUMNS", "SPAN"), tile, strict=True):
        monkeypatch.setattr(tiles, f"GATED_{name}", size)
    monkeypatch.setitem(mixtape.LEAF_BLOCKS, "cpu", 2)
    head, features = inputs(case, classes=37)
    reduction = "none" if "gate_noise" in case.options else "sum"
    compare(head.train(), features, TARGET, "triton", [TOKENS], reduction=reduction, **FULL)


@pytest.mark.parametrize(
    "case",
    [SOFTMAX.with_pointwise("multimax"), MOS, MOS.with_pointwise("multimax"), MIXTAPE],
    ids=str,
)
def test_what_lies_behind_rows_does_not_matter(case, monkeypatch):
    """Kernels read it, in order to load 16 bytes at once."""
    head, features = inputs(case, classes=37)
    for smoothing in (0.0, 0.1):  # the kernels are tried once
        run(head, features, TARGET, impl="triton", reduction="sum",
            **{**FULL, "label_smoothing": smoothing})  # fmt: skip
    buffer, dirt = FusedLoss.buffer, [torch.nan]

    def dirty(*given, **options):
        found = buffer(*given, **options)
        assert found.size(-1) < len(found._base) / math.prod(found.shape[:-1])
        found._base.fill_(dirt[0])
        return found

    monkeypatch.setattr(FusedLoss, "buffer", dirty)
    for dirt[0], smoothing in ((torch.nan, 0.0), (torch.inf, 0.1)):
        options = {**FULL, "label_smoothing": smoothing}
        compare(head, features, TARGET, "triton", reduction="sum", **options)


def test_a_row_that_torch_has_computed_has_nothing_behind_it():
    """The stride of an only row may be any number."""
    from highrank_plugins.losses.kernels.triton import passes

    row, kernels = torch.empty_strided((1, 5), (16, 1)), object.__new__(passes.TritonKernels)
    kernels.function = IDENTITY
    for kernels.by_torch, width in ((False, 16), (True, None)):
        assert kernels._width(row) == width


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_extreme_logits_match(case, smoothing):
    """Compare logits and gates of ±1e4 in float64."""
    head, features = extreme(case, dtype=torch.float64)
    target = torch.arange(5) % 7
    options = {"reduction": "sum", "label_smoothing": smoothing}
    compare(head, features.requires_grad_(), target, "triton", **options)


@pytest.mark.parametrize("case", [SOFTMAX, SOFTMAX.with_pointwise("gss"), MIXTAPE], ids=str)
def test_a_tile_of_ruled_out_classes_matches(case):
    """Give the whole first tile a bias of −∞."""
    head, features = inputs(case)
    with torch.no_grad():
        head.bias[:9] = -torch.inf
    want = compare(
        head, features, torch.full((TOKENS,), 11), "triton", reduction="sum", accuracy=True
    )
    assert all(g.isfinite().all() for g in want.gradients.values())


def test_the_first_of_equal_classes_is_the_most_probable(case):
    head = case.build(classes=CLASSES)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    target = torch.tensor([0, 1, 8, 0])
    out = head.nll(make_features(4), target, impl="triton", accuracy=True)
    assert out.correct.tolist() == [True, False, False, True]


@pytest.mark.parametrize("function", ["plif", "multimax"])
def test_torch_computes_learned_functions_with_too_many_sums(case, function, monkeypatch):
    """Only a mixture of softmaxes has a function, and its sums, for each component."""
    monkeypatch.setattr(tiles, "LEARNED_COMPONENTS", 1)
    case = case.with_pointwise(function, **({"knots": 8} if function == "plif" else {}))
    head, features = inputs(case)
    by_torch, prepare = [], head.pointwise.prepare_vjp

    def counted(*given):
        evaluate = prepare(*given)
        return lambda z: by_torch.append(len(z)) or evaluate(z)

    monkeypatch.setattr(head.pointwise, "prepare_vjp", counted)
    compare(head, features, TARGET, "triton", reduction="sum", label_smoothing=0.1)
    assert bool(by_torch) == (type(head) is MixtureOfSoftmaxes)


def test_sums_over_cells_do_not_depend_on_the_order():
    """Sums of float32 numbers would depend on it; the kernel adds integers."""
    head = SOFTMAX.with_pointwise("plif", knots=3).build(classes=CLASSES, dtype=torch.float32)
    features = 8 * make_features(60).float()
    target = torch.arange(60) % CLASSES
    found = []
    for order in (torch.arange(60), torch.arange(60).flip(0)):
        head.zero_grad()
        head.nll(features[order], target[order], reduction="sum", impl="triton").loss.backward()
        found.append(head.pointwise.slope_logits.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gate_noise_is_the_same_in_half_precision(dtype):
    case = MIXTAPE.with_options(gate_noise=2.0, frequent=16)  # the kernel computes the gates
    head, features = case.build(classes=16, dtype=dtype).train(), make_features(TOKENS)
    want = run(head, features.to(dtype), TARGET, impl="reference").values["nll"]
    got = run(head, features.to(dtype), TARGET, impl="triton").values["nll"]
    other = run(head, features.to(dtype), TARGET, impl="triton", seed=1).values["nll"]
    assert (got - want).norm() < 0.1 * (other - want).norm()


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    code = (
        "import torch; from highrank_plugins.heads import build_head\n"
        "head = build_head('softmax', num_classes=3, feature_dim=2)\n"
        "head.nll(torch.zeros(1, 2), torch.tensor([0]), impl='triton')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: impl: 'triton' needs a GPU")
    assert "TRITON_INTERPRET=1" in last and "impl='fused'" in last


# -- what `auto` takes on a CUDA device, which is faked ------------------------------------------

CUDA = torch.device("cuda", 0)


class OnCuda:
    """Stand in for features, with a device only."""

    device = CUDA
    dtype = torch.bfloat16


@pytest.fixture
def new_process(monkeypatch, caplog):
    """Fake a device; each test is the first use of it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(choice, "_logged", set())
    monkeypatch.setattr(trust, "verdicts", {})
    trust.warn.cache_clear()
    yield
    trust.warn.cache_clear()


def chosen(name="mos", **options):
    head = build_head(name, num_classes=9, feature_dim=4, **options)
    return choice.implementation_for(LossPlan(head, OnCuda(), None, None))


def test_auto_chooses_triton_where_it_runs_and_says_so_once(new_process, monkeypatch, caplog):
    assert [chosen(components=2), chosen(components=32)] == ["triton", "triton"]
    assert caplog.messages == ["The loss of mos is computed by 'triton' (--head-loss auto)."]
    assert chosen("moc", components=64) == "triton"  # of contexts, any number fits
    assert chosen(components=33) == "fused"
    # a checkpoint with triton is used by auto, which may fall back
    assert choice.implementation_here("triton", CUDA) == "auto"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    assert chosen(components=2) == "fused"
    assert "compute capability is 6.1, but Triton's kernels need 7.0" in caplog.text


@pytest.mark.parametrize(
    "name, components, dtype, most",
    [("mos", 33, torch.float32, 32), ("mos", 17, torch.float64, 16),
     ("mixtape", 64, torch.bfloat16, 32), ("mixtape", 32, torch.float64, 16)],
)  # fmt: skip
def test_more_components_than_registers_are_refused(name, components, dtype, most):
    head = build_head(name, num_classes=9, feature_dim=4, components=components).to(dtype)
    features, target = torch.zeros(2, 4, dtype=dtype), torch.zeros(2, dtype=torch.long)
    why = f"at most {most} components in {dtype}.*{components}.*impl='fused'"
    with pytest.raises(ValueError, match=why):
        head.nll(features, target, impl="triton")


def refused_by_the_compiler():
    from triton.compiler.errors import CompilationError

    return CompilationError("def kernel():\n    known = inputs[j]\n    ^", None)


FAILURES = [
    (refused_by_the_compiler, "known = inputs[j]"),
    (lambda: RuntimeError("PassManager::run failed"), "PassManager::run failed"),
    (lambda: RuntimeError("Failed to find C compiler."), "install a C compiler, or name it in CC"),
    (lambda: OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    (lambda: subprocess.CalledProcessError(1, ["gcc"]), "gcc"),
]
KERNELS = [("mixtape", "tree_backward_kernel"), ("mos", "gradient_kernel"),
           ("softmax", "softmax_kernel")]  # fmt: skip


def loss(name, impl, reduction):
    """Return loss and gradients of a layer with its own seed."""
    torch.manual_seed(1)
    options = {} if name == "softmax" else {"components": 2}
    head = build_head(name, num_classes=9, feature_dim=4, **options)
    features = torch.randn(5, 4, requires_grad=True)
    out = head.nll(features, torch.arange(5), reduction=reduction, impl=impl).loss
    out.sum().backward()
    return [out, features.grad, *(p.grad for p in head.parameters() if p.grad is not None)]


@pytest.fixture
def break_kernel(new_process, monkeypatch):
    """Let `auto` take the kernels on a CPU; return a function that breaks one of them."""
    from highrank_plugins.losses.kernels.triton import passes

    def broken(name, error):
        kernel = mock.MagicMock(fn=getattr(passes, name).fn)
        kernel.__getitem__.return_value.side_effect = error
        monkeypatch.setattr(passes, name, kernel)

    monkeypatch.setattr(choice, "_auto", lambda head, features: "triton")
    return broken


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("name, kernel", KERNELS)
@pytest.mark.parametrize("failure, why", FAILURES)
def test_auto_falls_back_where_a_kernel_does_not_compile(
    break_kernel, caplog, name, kernel, failure, why, reduction
):
    break_kernel(kernel, failure())
    for _ in range(2):  # the second loss does not try again
        found, want = loss(name, "auto", reduction), loss(name, "reference", reduction)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, want, strict=True))
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"cannot compile {kernel} (" in warning and why in warning
    with pytest.raises(ValueError, match=rf"cannot compile {kernel} .*impl='fused'"):
        loss(name, "triton", reduction)


@pytest.mark.parametrize("said", ["CUDA out of memory", "Triton Error [CUDA]: misaligned address"])
def test_other_errors_of_a_gpu_are_no_failed_compilation(break_kernel, said):
    break_kernel("softmax_kernel", RuntimeError(said))
    with pytest.raises(RuntimeError, match=re.escape(said)):
        loss("softmax", "auto", "sum")
