"""Every implementation on a CUDA device, where kernels are compiled: as exact as on the CPU."""

import pytest
import torch

from highrank_plugins.losses import targets
from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import CASES, MIXTAPE, STRUCTURES, make_features
from tests.losses import test_low_precision as low
from tests.losses.implementations import (
    CLASSES,
    FULL,
    ONCE,
    TARGET,
    TOKENS,
    WEIGHT,
    assert_same,
    run,
)

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# in half precision, the kernel computes the gates if S is a multiple of 16
GATES_IN_KERNEL = MIXTAPE.with_options(gate_dim=20)

every_implementation = pytest.mark.parametrize("impl", [name for name in ONCE if name != "cpp"])


@every_implementation
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_head_matches_in_float64(case, reduction, impl):
    head = case.build(classes=CLASSES).to(DEVICE)
    features, target = make_features(TOKENS).to(DEVICE).requires_grad_(), TARGET.to(DEVICE)
    for smoothing in (0.0, 0.1):
        options = {**FULL, "weight": WEIGHT.to(DEVICE), "label_smoothing": smoothing,
                   "reduction": reduction}  # fmt: skip
        want = run(head, features, target, impl="reference", **options)
        assert_same(run(head, features, target, impl=impl, **options), want)


@every_implementation
@pytest.mark.parametrize("case", [*STRUCTURES, GATES_IN_KERNEL], ids=str)
def test_every_kind_of_target_matches_in_float64(case, impl):
    head, teacher = (c.build(classes=CLASSES).to(DEVICE) for c in (case, STRUCTURES[0]))
    features, target = make_features(TOKENS).to(DEVICE).requires_grad_(), TARGET.to(DEVICE)
    taught = targets.from_teacher(teacher, features.detach(), temperature=2.0)
    soft = targets.labels(target, 0.1) + 0.5 * taught + -0.1 * targets.entropy()
    want = run(head, features, soft, impl="reference", z_loss=0.05, reduction="sum")
    assert_same(run(head, features, soft, impl=impl, z_loss=0.05, reduction="sum"), want)


@every_implementation
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", low.CASES, ids=str)
def test_half_precision_stays_within_its_error_bound(case, dtype, reduction, impl):
    errors = low.average_errors(case, dtype, reduction, impl, device=DEVICE)
    check(errors, dtype)


def check(errors, dtype):
    """Allow for the hardware's logarithm and sigmoid in float32, whose error is up to 2^-21."""
    low.check(errors, dtype, least=2**-21 if dtype == torch.float32 else 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", [*STRUCTURES, GATES_IN_KERNEL], ids=str)
def test_kernels_match_with_tiles_of_full_size(case, smoothing, dtype, monkeypatch):
    """Compare rows longer than a tile with the fused loss in float64."""
    monkeypatch.setattr(tiles, "COLUMNS", 4096)
    classes = 10_007
    options = {"embed_dim": 48} if case.head != "softmax" else {}
    if case.head == "mixtape":
        options |= {"frequent": 5_008 if case is GATES_IN_KERNEL else 5_003}
    head = case.build(classes=classes, feature_dim=48, **options).to(DEVICE, dtype)
    features = make_features(33, feature_dim=48).to(DEVICE, dtype).requires_grad_()
    target = (torch.arange(33, device=DEVICE) * 311) % classes
    calls = {"label_smoothing": smoothing, "reduction": "sum", "upstream": torch.tensor(0.7)}
    got = run(head, features, target, impl="triton", **calls)
    of_reference = run(head, features, target, impl="reference", **calls)
    truth = run(head.double(), features.detach().double().requires_grad_(), target, impl="fused",
                **calls)  # fmt: skip
    check([low.relative_errors(of_reference, truth), low.relative_errors(got, truth)], dtype)
