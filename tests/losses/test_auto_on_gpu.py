"""`auto` on a CUDA device, which is faked: `triton` where a first launch succeeds."""

import errno
import logging
import subprocess

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.losses import choice
from highrank_plugins.losses.kernels import triton as kernels

pytestmark = pytest.mark.triton
CUDA = torch.device("cuda", 0)


class OnCuda:
    """Stand in for features, with a device only."""

    device = CUDA
    dtype = torch.bfloat16


@pytest.fixture
def launches(monkeypatch, caplog):
    """Fake a device, and count first launches; each test is the first use of it."""
    seen = []
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "first_launch", seen.append)
    monkeypatch.setattr(choice, "_logged", set())
    monkeypatch.setattr(kernels, "_ruled_out", set())
    for cached in (kernels.launch_failure, kernels._warn_once):
        cached.cache_clear()
    yield seen
    for cached in (kernels.launch_failure, kernels._warn_once):
        cached.cache_clear()


def chosen(**options):
    head = build_head("mos", num_classes=9, feature_dim=4, **options)
    return choice.implementation_for("auto", head, OnCuda(), filtered=False)


def test_auto_chooses_triton_where_a_launch_succeeds(launches, caplog):
    assert [chosen(components=2), chosen(components=3)] == ["triton", "triton"]
    assert launches == [CUDA]
    message = "The loss of mos is computed by 'triton' (--head-loss auto)."
    assert caplog.messages == [message]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
        FileNotFoundError("no gcc"),
        subprocess.CalledProcessError(1, ["gcc"]),
    ],
)
def test_auto_chooses_fused_where_a_launch_fails_and_says_why_once(
    launches, monkeypatch, caplog, error
):
    def fail(device):
        raise error

    monkeypatch.setattr(kernels, "first_launch", fail)
    assert [chosen(components=2), chosen(components=3)] == ["fused", "fused"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "Triton needs a C compiler: install gcc, or name one in CC" in warnings[0].getMessage()
    with pytest.raises(ValueError, match=r"'triton' cannot run on cuda:0: .*impl='fused'"):
        kernels.check_available(CUDA)


def test_auto_chooses_fused_on_an_old_card(launches, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    assert chosen(components=2) == "fused" and launches == []
    assert "compute capability is 6.1, but Triton's kernels need 7.0" in caplog.text


@pytest.mark.parametrize(
    "name, components, dtype, most",
    [("mos", 33, torch.float32, 32), ("mos", 17, torch.float64, 16),
     ("mixtape", 64, torch.bfloat16, 32), ("mixtape", 32, torch.float64, 16)],
)  # fmt: skip
def test_more_components_than_registers_are_refused(launches, name, components, dtype, most):
    head = build_head(name, num_classes=9, feature_dim=4, components=components).to(dtype)
    features, target = torch.zeros(2, 4, dtype=dtype), torch.zeros(2, dtype=torch.long)
    why = f"at most {most} components in {dtype}.*{components}.*impl='fused'"
    with pytest.raises(ValueError, match=why):
        head.nll(features, target, impl="triton")


def test_more_components_than_registers_are_left_to_fused(launches):
    assert chosen(components=33) == "fused"
    assert chosen(components=32) == "triton"


def test_a_mixture_of_contexts_may_have_any_number_of_components(launches):
    head = build_head("moc", num_classes=9, feature_dim=4, components=64)
    assert choice.implementation_for("auto", head, OnCuda(), filtered=False) == "triton"


def test_the_first_launch_runs_in_the_interpreter(monkeypatch):
    """The first launch is a valid call of the kernel; it runs on a CPU here."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    kernels.first_launch(torch.device("cpu"))


class Broken:
    """Stand in for a kernel whose compilation ends in an error."""

    def __init__(self, fn, error):
        self.fn, self.error = fn, error

    def __getitem__(self, grid):
        def start(*arguments, **tile):
            raise self.error

        return start


def refused_by_the_compiler():
    from triton.compiler.errors import CompilationError

    error = CompilationError("def kernel():\n    x", None)
    error.__cause__ = AssertionError("no such index")
    return error


FAILURES = [
    (refused_by_the_compiler, "AssertionError: no such index"),
    (lambda: RuntimeError("PassManager::run failed"), "PassManager::run failed"),
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
def on_the_interpreter(launches, monkeypatch):
    """Let `auto` take the kernels on a CPU, for classes that are not ruled out."""

    def taken(head, features):
        return "fused" if type(head) in kernels._ruled_out else "triton"

    monkeypatch.setattr(choice, "_auto", taken)


def break_kernel(monkeypatch, name, error):
    from highrank_plugins.losses.kernels.triton import passes

    monkeypatch.setattr(passes, name, Broken(getattr(passes, name).fn, error))


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("name, kernel", KERNELS)
@pytest.mark.parametrize("failure, why", FAILURES)
def test_auto_falls_back_where_a_kernel_does_not_compile(
    on_the_interpreter, monkeypatch, caplog, name, kernel, failure, why, reduction
):
    break_kernel(monkeypatch, kernel, failure())
    for _ in range(2):  # the second loss does not try again
        found, want = loss(name, "auto", reduction), loss(name, "reference", reduction)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, want, strict=True))
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"cannot compile {kernel} (" in warning and why in warning
    kernels._ruled_out.clear()
    with pytest.raises(ValueError, match=rf"cannot compile {kernel} .*impl='fused'"):
        loss(name, "triton", reduction)


def test_other_errors_of_a_gpu_are_no_failed_compilation(on_the_interpreter, monkeypatch):
    break_kernel(monkeypatch, "softmax_kernel", torch.OutOfMemoryError("too little memory"))
    with pytest.raises(torch.OutOfMemoryError):
        loss("softmax", "auto", "sum")
