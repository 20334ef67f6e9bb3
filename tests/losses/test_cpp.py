"""Level `cpp` beyond what every level must do: its own arithmetic, threads, and what it chooses."""

import logging
import subprocess
import sys

import pytest
import torch

from highrank_plugins.losses import levels as doors
from highrank_plugins.losses.cpp import available
from highrank_plugins.losses.fused import FusedLogits
from tests.heads.cases import MOS, SOFTMAX, STRUCTURES, make_features
from tests.losses.levels import CLASSES, FULL, TARGET, TOKENS, assert_same, run

needs_compiler = pytest.mark.cpp


@pytest.fixture
def threads():
    """Sets the number of threads, and puts back what it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("spread", [1, 10, 100])
@pytest.mark.parametrize("pointwise", ["identity", "gss"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_float32_is_as_exact_as_torch(case, pointwise, spread):
    """Errors against float64 are at most twice those of the fused loss, and some of the scale."""
    head = case.with_pointwise(pointwise).build(classes=1000)
    features = make_features(64)
    with torch.no_grad():
        head.weight.mul_(spread)
    target = torch.arange(64) * 7
    options = {"label_smoothing": 0.1, "reduction": "sum"}
    truth = run(head, features.requires_grad_(), target, impl="fused", **options)
    narrow = features.detach().float().requires_grad_()
    head = head.float()
    outcomes = [run(head, narrow, target, impl=impl, **options) for impl in ("fused", "cpp")]
    for part in ("values", "gradients"):
        for name, want in getattr(truth, part).items():
            torchs, ours = ((getattr(o, part)[name] - want).abs().max() for o in outcomes)
            assert ours <= 2 * torchs + 2e-6 * want.abs().max(), name


@needs_compiler
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_any_number_of_threads(case, count, threads):
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    want = run(head, features, TARGET, impl="reference", reduction="sum", **FULL)
    threads(count)
    assert_same(run(head, features, TARGET, impl="cpp", reduction="sum", **FULL), want)


@needs_compiler
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_nan_shows(case, dtype, smoothing):
    head, features = case.build(classes=CLASSES, dtype=dtype), make_features(TOKENS).to(dtype)
    features[2] = torch.nan
    out = head.nll(features.requires_grad_(), TARGET, impl="cpp", label_smoothing=smoothing)
    bad = torch.arange(TOKENS) == 2
    assert out.loss[bad].isnan().all() and out.loss[~bad].isfinite().all()
    out.loss.sum().backward()
    assert head.weight.grad.isnan().any()


@needs_compiler
def test_there_is_one_pool_of_threads():
    """Two OpenMP libraries would each have one, and wait busily beside each other."""
    code = (
        "from highrank_plugins.losses.cpp.build import library; library()\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 1, done.stdout


@needs_compiler
@pytest.mark.parametrize("dtype, level", [(torch.float32, "cpp"), (torch.float64, "fused")])
def test_auto_takes_it_for_float32(dtype, level, caplog, monkeypatch):
    monkeypatch.setattr(doors, "_logged", set())
    head, features = MOS.build(classes=CLASSES, dtype=dtype), make_features(TOKENS).to(dtype)
    with caplog.at_level(logging.INFO):
        head.nll(features, TARGET)
    assert f"loss of MixtureOfSoftmaxes: level {level!r}" in caplog.text


def test_another_device_is_named():
    with pytest.raises(ValueError, match="'cpp' works on a CPU, the features lie on cuda"):
        available.check_available(torch.device("cuda"))


@needs_compiler
def test_a_fused_loss_without_kernels_is_named():
    class Other(FusedLogits):
        pass

    head = SOFTMAX.build().float()
    head.fused = Other
    with pytest.raises(ValueError, match=r"no C\+\+ kernels for Other; impl='fused'"):
        head.nll(make_features(3).float(), torch.arange(3), impl="cpp")
    assert head.nll(make_features(3).float(), torch.arange(3)).loss.isfinite().all()
