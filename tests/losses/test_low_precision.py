"""Half precision, and filtered gradients, within their bounds; on a GPU, all implementations.

In half precision the error against float64 is at most twice the reference's own.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.heads import build_head
from highrank_plugins.losses import targets
from highrank_plugins.losses.kernels.triton import tiles
from highrank_plugins.losses.nll import FUSED
from tests.heads import cases as heads
from tests.heads.cases import MIXTAPE, MOC, MOS, SOFTMAX, STRUCTURES, make_features
from tests.losses import implementations
from tests.losses.implementations import (
    FULL,
    ONCE,
    WEIGHT,
    assert_same,
    memory_for,
    run,
    with_reductions,
)

IN_TRITON = ("identity", "sigsoftmax", "gss")  # functions that its kernels compute
HALF = [torch.float16, torch.bfloat16]
CLASSES, TOKENS, FEATURE_DIM, SEEDS = 50, 64, 16, 3
TARGET = torch.arange(TOKENS) % 29
CASES = [
    *STRUCTURES,
    SOFTMAX.with_pointwise("gss", learn=True),
    MOC.with_pointwise("sigsoftmax"),
    MOS.with_pointwise("plif", knots=50, bound=5.0),
    MIXTAPE.with_pointwise("monotone_mlp", units=3),
    MIXTAPE.with_options(gate_weight_norm=1.5),
]


def build(case, dtype, seed):
    options = {} if case.head == "softmax" else {"embed_dim": 12}
    if case.head == "mixtape":
        options |= {"frequent": 30, "gate_dim": 8}
    return case.build(classes=CLASSES, feature_dim=FEATURE_DIM, dtype=dtype, seed=seed, **options)


def every_case(in_triton=()):
    """Return parameters (case, impl); those of Triton are long, but for some functions.

    Torch computes the others for its kernels as it does for `fused`, and its interpreter takes five
    seconds for each.
    """
    long = [pytest.mark.long]
    return pytest.mark.parametrize(("case", "impl"), [
        pytest.param(case, impl, id=f"{case}-{impl}",
                     marks=long * (impl == "triton" and case.pointwise not in in_triton))
        for case in CASES for impl in ONCE
    ])  # fmt: skip


def sizes(impl, device="cpu"):
    """Return tokens and heads: Triton's interpreter takes 20 ms for each token of a MoS."""
    return (12, 2) if impl == "triton" and device == "cpu" else (TOKENS, SEEDS)


def relative_errors(got, truth):
    """Return the norm of the error over the norm of the truth, for each value and gradient.

    Gradients that are 0 by nature are left out, as that of a constant added to all logits."""
    pairs = {name: (got.values[name], truth.values[name]) for name in truth.values}
    pairs |= {name: (got.gradients[name], truth.gradients[name]) for name in truth.gradients}
    pairs = {name: (a.double(), b.double()) for name, (a, b) in pairs.items()}
    return {name: (a - b).norm() / b.norm() for name, (a, b) in pairs.items() if b.norm() > 1e-9}


def average_errors(case, dtype, reduction, impl, autocast=False, device="cpu"):
    """Return root mean squares over a few heads: the errors of the reference and of another one.

    Compare chunks of 4 tokens (a 16th or a third of all), and one of all tokens."""
    count, seeds = sizes(impl, device)
    upstream = torch.linspace(-1, 2, count) if reduction == "none" else torch.tensor(1.7)
    options = {"reduction": reduction, "upstream": upstream, "label_smoothing": 0.1}
    errors = []
    for seed in range(seeds):
        head = build(case, dtype, seed).to(device)
        features = make_features(count, feature_dim=FEATURE_DIM, seed=seed).to(device, dtype)
        target = TARGET[:count].to(device)
        inputs = (features.requires_grad_(), target)
        runs = [run(head, *inputs, impl="reference", autocast=autocast, **options)]
        for tokens in (4, count):
            memory = memory_for(head, tokens, impl)
            runs.append(run(head, *inputs, impl=impl, memory=memory, autocast=autocast, **options))
        for got in runs:
            assert got.values["loss"].dtype == torch.float32
            assert all(g.dtype == dtype for g in got.gradients.values())
        truth = run(head.double(), features.detach().double().requires_grad_(), target,
                    impl="reference", **options)  # fmt: skip
        errors.append([relative_errors(got, truth) for got in runs])
    return [
        {name: float(torch.stack([e[i][name] for e in errors]).square().mean().sqrt())
         for name in errors[0][0]} for i in range(len(runs))
    ]  # fmt: skip


def check(errors, precision):
    of_reference, *others = errors
    # in float32, the logarithm and the sigmoid of a GPU's hardware have an error of up to 2^-21
    least = 2**-21 if precision == torch.float32 else torch.finfo(precision).eps / 2
    for ours in others:
        for name, error in of_reference.items():
            # one rounding of the result more: plain torch may be lucky with a single number
            assert ours[name] <= 2 * error + least, name


# "none" computes in its backward pass what "sum" computes
@pytest.mark.parametrize("dtype", HALF, ids=str)
@every_case(IN_TRITON)
def test_half_precision_stays_within_its_error_bound(case, dtype, impl):
    for reduction in ("sum",) if impl == "triton" else ("none", "sum"):
        check(average_errors(case, dtype, reduction, impl), dtype)


# The kernels see no difference between parameters in bfloat16 and autocast to it.
@every_case()
def test_autocast_stays_within_its_error_bound(case, reduction, impl):
    check(average_errors(case, torch.float32, reduction, impl, autocast=True), torch.bfloat16)


@pytest.mark.parametrize("dtype", HALF, ids=str)  # the device's own choice is bfloat16
@every_case()
def test_autocast_does_not_reach_the_backward_pass(case, impl, dtype):
    """Compare sum, whose gradients arise inside autocast, with none, whose arise after it."""
    head = build(case, torch.float32, seed=0)
    tokens, _ = sizes(impl)
    features = make_features(tokens, feature_dim=FEATURE_DIM).float().requires_grad_()
    options = {"label_smoothing": 0.1, "autocast": dtype, "impl": impl}
    options["upstream"] = torch.tensor(1.0)
    early = run(head, features, TARGET[:tokens], reduction="sum", **options)
    late = run(head, features, TARGET[:tokens], reduction="none", **options)
    # a sum's float16 gradients are scaled while it adds them up, and so rounded elsewhere
    near = 1e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(early.gradients, late.gradients, rtol=near, atol=near)


def test_small_gradients_survive_in_float16(reduction, impl):
    """Class 1 has probability 2e-8. Its gradient is below float16's least number, 6e-8, before the
    loss scale of 128 multiplies it, and well above afterwards."""
    head = SOFTMAX.build(classes=3, feature_dim=2, dtype=torch.float16)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, -17.72, -1.0]))
    features = torch.tensor([[1.0, -0.5]], dtype=torch.float16, requires_grad=True)
    options = {"reduction": reduction, "upstream": torch.tensor(128.0)}
    target = torch.tensor([0])
    of_reference = run(head, features, target, impl="reference", **options)
    got = run(head, features, target, impl=impl, **options)
    truth = run(head.double(), features.detach().double(), target, impl="reference", **options)
    for name in ("weight", "bias"):
        want = truth.gradients[name][1]
        assert 1e-6 < want.abs().max() < 4e-6
        ours, theirs = (o.gradients[name][1].double() for o in (got, of_reference))
        assert ours.abs().min() > 0
        assert (ours - want).norm() <= 2 * (theirs - want).norm() + 1e-9, name


def test_large_gradients_do_not_overflow_in_float16(reduction, impl):
    """600 tokens of one class: the sum over tokens, 1800, fits; 128 times it would not."""
    head = SOFTMAX.build(classes=3, feature_dim=2, dtype=torch.float16)
    features = torch.full((600, 2), 3.0, dtype=torch.float16, requires_grad=True)
    target = torch.zeros(600, dtype=torch.long)
    with torch.no_grad():
        head.bias[0] = -20.0
    options = {"reduction": reduction, "upstream": torch.tensor(1.0)}
    of_reference = run(head, features, target, impl="reference", **options)
    got = run(head, features, target, impl=impl, **options)
    assert torch.isfinite(of_reference.gradients["weight"]).all()
    for name, gradient in of_reference.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=2e-3, atol=1e-3)


# -- filtered gradients: off by default, within their bound, and really skipped -------------------

FEW = 16  # tokens
FREQUENT = torch.arange(FEW) % 5


def peaked(case, dtype=torch.float32):
    head = case.build(classes=300, dtype=dtype)
    with torch.no_grad():
        head.bias.copy_(torch.linspace(0, -60, 300))
    return head, make_features(FEW).to(dtype).requires_grad_()


def both(head, features, **options):
    """Return what is found without and with filtering."""
    options = {"impl": "fused", "reduction": "sum", "target": FREQUENT, **options}
    return [run(head, features, filter_gradients=on, **options) for on in (False, True)]


@pytest.mark.parametrize(("impl", "reduction"), with_reductions(FUSED))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_filtered_gradients_stay_within_the_bound(case, reduction, dtype, impl):
    """Leave out only what is below the rounding of what is kept."""
    head, features = peaked(case, dtype)
    upstream = torch.tensor(1.0)
    want, got = both(head, features, impl=impl, reduction=reduction, upstream=upstream)
    assert got.values["loss"].equal(want.values["loss"])
    largest, contexts = 1.0, 2.0 * FEW * 3  # |P − 1| ≤ 1; |h| < 2, K components at most 4
    sums = max(contexts, head.weight.abs().sum().item())
    bound = torch.finfo(dtype).eps * largest * sums + 1e-6
    for name, gradient in want.gradients.items():
        assert (got.gradients[name] - gradient).abs().max() <= bound, name


def test_a_component_of_small_weight_does_not_set_the_bound():
    """Its own gradients are as large as one over its weight before they are multiplied by that."""
    torch.manual_seed(0)
    head = build_head("mos", num_classes=50, feature_dim=8, components=2)
    with torch.no_grad():
        head.weight.mul_(100)
        head.prior.weight.copy_(torch.eye(2, 8) * torch.tensor([30.0, 0.0]).unsqueeze(1))
    features = make_features(FEW, feature_dim=8).float()
    features[:, 0] = 1.0  # one component has e^-30 of the weight
    features.requires_grad_()
    want, got = both(head, features, label_smoothing=0.1)
    for name, gradient in want.gradients.items():
        assert (got.gradients[name] - gradient).abs().max() <= 1e-4, name


@pytest.mark.parametrize("impl", FUSED)
def test_products_are_skipped(case, impl):
    head, features = peaked(case)
    both(head, features, impl=impl)  # at its first use a kernel is tried
    flops = []
    for on in (False, True):
        with FlopCounterMode(display=False) as counter:
            got = run(head, features, FREQUENT, impl=impl, reduction="sum", filter_gradients=on)
        flops.append(counter.get_total_flops())
    assert flops[1] < flops[0]
    assert not got.gradients["weight"][-50:].any()


def test_values_that_are_not_finite_stay_visible(case):
    """float16 overflow times 128 is found and undone; NaN stays NaN."""
    head, features = peaked(case, torch.float16)
    want, got = both(head, features, weight=torch.full((FEW,), 1e3))
    torch.testing.assert_close(got.gradients, want.gradients, rtol=1e-2, atol=1e-2 * 1e3)
    assert got.gradients["weight"].norm() > 0.9 * want.gradients["weight"].norm() > 0
    broken = torch.full_like(features, torch.nan).detach().requires_grad_()
    _, got = both(head, broken)
    assert got.gradients["weight"].isnan().any()
    for frequent, tokens in ((0, 3), (9, 3), (9, 0)):  # some or all products have no rows
        head = MIXTAPE.with_options(frequent=frequent).build(classes=9, dtype=torch.float16)
        _, got = both(head, features[:tokens], target=FREQUENT[:tokens])
        assert got.gradients["features"].shape == (tokens, 4)


# -- on a CUDA device, where kernels are compiled: as exact as on the CPU -------------------------

DEVICE, DTYPES = "cuda", [torch.float32, *HALF]
# in half precision, the kernel computes the gates if S is a multiple of 16
ALL_KERNELS = [*STRUCTURES, MIXTAPE.with_options(gate_dim=20)]
every_implementation = pytest.mark.parametrize("impl", [name for name in ONCE if name != "cpp"])


def on_gpu(*cases):
    features = make_features(implementations.TOKENS).to(DEVICE).requires_grad_()
    heads = (case.build(classes=implementations.CLASSES).to(DEVICE) for case in cases)
    return features, implementations.TARGET.to(DEVICE), *heads


@pytest.mark.gpu
@every_implementation
@pytest.mark.parametrize("case", heads.CASES, ids=str)
def test_every_head_matches_in_float64(case, reduction, impl):
    features, target, head = on_gpu(case)
    for smoothing in (0.0, 0.1):
        options = {**FULL, "weight": WEIGHT.to(DEVICE), "label_smoothing": smoothing,
                   "reduction": reduction}  # fmt: skip
        want = run(head, features, target, impl="reference", **options)
        assert_same(run(head, features, target, impl=impl, **options), want)


@pytest.mark.gpu
@every_implementation
@pytest.mark.parametrize("case", ALL_KERNELS, ids=str)
def test_every_kind_of_target_matches_in_float64(case, impl):
    features, target, head, teacher = on_gpu(case, SOFTMAX)
    taught = targets.from_teacher(teacher, features.detach(), temperature=2.0)
    soft = targets.labels(target, 0.1) + 0.5 * taught + -0.1 * targets.entropy()
    want = run(head, features, soft, impl="reference", z_loss=0.05, reduction="sum")
    assert_same(run(head, features, soft, impl=impl, z_loss=0.05, reduction="sum"), want)


@pytest.mark.gpu
@every_implementation
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_dtype_stays_within_its_error_bound(case, dtype, reduction, impl):
    check(average_errors(case, dtype, reduction, impl, device=DEVICE), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", ALL_KERNELS, ids=str)
def test_kernels_match_with_tiles_of_full_size(case, smoothing, dtype, monkeypatch):
    """Compare rows longer than a tile with the fused loss in float64."""
    monkeypatch.setattr(tiles, "COLUMNS", 4096)
    classes = 10_007
    options = {"embed_dim": 48} if case.head != "softmax" else {}
    if case.head == "mixtape":
        options |= {"frequent": 5_008 if case is ALL_KERNELS[-1] else 5_003}
    head = case.build(classes=classes, feature_dim=48, **options).to(DEVICE, dtype)
    features = make_features(33, feature_dim=48).to(DEVICE, dtype).requires_grad_()
    target = (torch.arange(33, device=DEVICE) * 311) % classes
    calls = {"label_smoothing": smoothing, "reduction": "sum", "upstream": torch.tensor(0.7)}
    got = run(head, features, target, impl="triton", **calls)
    of_reference = run(head, features, target, impl="reference", **calls)
    truth = run(head.double(), features.detach().double().requires_grad_(), target, impl="fused",
                **calls)  # fmt: skip
    check([relative_errors(of_reference, truth), relative_errors(got, truth)], dtype)
