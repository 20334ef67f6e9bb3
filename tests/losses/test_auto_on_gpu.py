"""`auto` on a CUDA device, which is faked: `triton` where its kernels compile."""

import errno
import logging
import re
import subprocess
from unittest import mock

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.losses import nll as choice
from highrank_plugins.losses import trust
from highrank_plugins.losses.plan import LossPlan

pytestmark = pytest.mark.triton
CUDA = torch.device("cuda", 0)


class OnCuda:
    """Stand in for features, with a device only."""

    device = CUDA
    dtype = torch.bfloat16


@pytest.fixture(autouse=True)
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


def test_auto_chooses_triton_where_it_runs_and_says_so_once(monkeypatch, caplog):
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
def break_kernel(monkeypatch):
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
