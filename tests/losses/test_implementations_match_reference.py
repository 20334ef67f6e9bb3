"""Every implementation against plain autograd in float64: values and every gradient, to 1e-9."""

import itertools

import pytest
import torch

from highrank_plugins.heads import build_pointwise
from highrank_plugins.losses import IMPLEMENTATIONS
from highrank_plugins.losses.kernels.compiled import FAMILIES
from highrank_plugins.losses.nll import FUSED
from tests.heads.cases import CASES, MIXTAPE, MOC, MOS, PRODUCT, make_features
from tests.losses.implementations import (
    CLASSES,
    FULL,
    IGNORED,
    ONCE,
    TARGET,
    TOKENS,
    UPSTREAM,
    WEIGHT,
    Outcome,
    assert_same,
    compare,
    inputs,
    run,
    with_reductions,
)

CHUNKS = [1, 3, TOKENS, None]  # tokens; None is the default budget
CALLS = [
    {}, {"label_smoothing": 0.1}, {"weight": WEIGHT, "ignore_index": IGNORED}, {"accuracy": True},
    {"entropy": True}, {"z_loss": 0.05}, {"z_loss": 0.05, "label_smoothing": 0.1}, FULL,
]  # fmt: skip


def chunks_of(impl):
    """Return sizes of chunks, fewer for the kernels, whose interpreter is slow."""
    return CHUNKS if impl != "triton" else [CHUNKS[1], CHUNKS[-1]]


def every_head():
    """Return all cases; those that torch computes for Triton's kernels are long, but for one."""
    for impl in ONCE:
        for case in CASES:
            if impl in FUSED and case.build(classes=CLASSES).fused is None:
                continue
            function = build_pointwise(case.pointwise, **case.pointwise_options).kernel_function
            by_torch = function is None or function.family not in FAMILIES
            slow = impl == "triton" and case.pointwise != "plif" and by_torch
            # its kernel is the softmax's
            slow |= impl == "triton" and str(case).startswith(("moc-multimax", "mixtape-multimax"))
            yield pytest.param(
                case, impl, marks=pytest.mark.long if slow else (), id=f"{case}-{impl}"
            )


@pytest.mark.parametrize("case, impl", list(every_head()))
def test_every_head_matches(case, impl, reduction):
    head, features = inputs(case)
    # both for each kernel in test_every_option_matches; its interpreter is slow
    smoothings = (0.0, 0.1) if impl != "triton" else (0.1 * (reduction == "sum"),)
    for smoothing in smoothings:
        want = compare(head, features, TARGET, impl, chunks_of(impl), reduction=reduction,
                       **{**FULL, "label_smoothing": smoothing})  # fmt: skip
        assert {"weight", "features"} <= want.gradients.keys()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("options", CALLS, ids=lambda options: "+".join(options) or "nothing")
def test_every_option_matches(case, options, reduction, impl):
    head, features = inputs(case)
    chunks = chunks_of(impl)
    assert compare(head, features, TARGET, impl, chunks, reduction=reduction, **options).gradients


# -- settings: what may be particular about a layer and its inputs -------------------------------


def shaped(*leading):
    def build(case):
        features = make_features(*leading).requires_grad_()
        target = torch.arange(features[..., 0].numel()).reshape(leading)
        return case.build(classes=CLASSES), features, target, {"accuracy": True}

    return build


def transposed(case):
    features = make_features(3, 2).transpose(0, 1).requires_grad_()
    target, weight = (t[:6].view(3, 2).t() for t in (TARGET, WEIGHT))
    assert not features.is_contiguous() and not target.is_contiguous()
    return case.build(classes=CLASSES), features, target, {"weight": weight}


def frozen(*names, bias=None):
    def build(case):
        head, features = inputs(case)
        if bias is not None:
            head.bias = torch.nn.Parameter(bias.double())
        for name, tensor in {**dict(head.named_parameters()), "features": features}.items():
            if name in names:
                tensor.requires_grad_(False)
        return head, features, TARGET, {}

    return build


def with_function(name, **options):
    return lambda case: frozen("features")(case.with_pointwise(name, **options))


def first_class_ruled_out(case):
    """Ignored tokens must not get it as a target."""
    head, features, target, _ = frozen()(case)
    with torch.no_grad():
        head.bias[0] = -torch.inf
    return head, features, target.clamp(min=1), {"ignore_index": IGNORED}


SETTINGS = {
    **{f"shape {leading}": shaped(*leading) for leading in [(), (0,), (0, 3), (2, 3), (2, 1, 2)]},
    **{f"frozen {'+'.join(names)}": frozen(*names)
       for n in (1, 2, 3) for names in itertools.combinations(("weight", "bias", "features"), n)},
    "transposed": transposed,
    "bias with strides": frozen(bias=torch.randn(CLASSES, 2)[:, 0]),
    "frozen slopes": with_function("plif", freeze=True, knots=9),
    "learned gss": with_function("gss", learn=True),
    "first class ruled out": first_class_ruled_out,
}  # fmt: skip


@pytest.mark.parametrize(("impl", "reduction"), with_reductions(ONCE))
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_matches(case, setting, reduction, impl):
    head, features, target, options = SETTINGS[setting](case)
    upstream = make_features(*target.shape)[..., 0] if reduction == "none" else torch.tensor(1.3)
    smoothing = 0.0 if setting == "first class ruled out" else 0.1
    want = compare(head, features, target, impl, [3, None], reduction=reduction, upstream=upstream,
                   label_smoothing=smoothing, **options)  # fmt: skip
    assert want.values["loss"].shape == (target.shape if reduction == "none" else ())
    trained = {n for n, t in (*head.named_parameters(), ("features", features)) if t.requires_grad}
    assert want.gradients.keys() == trained
    with torch.no_grad():
        out = head.nll(features, target, impl=impl, reduction=reduction, label_smoothing=smoothing,
                       **options)  # fmt: skip
    assert not out.loss.requires_grad
    torch.testing.assert_close(out.loss, want.values["loss"], rtol=1e-9, atol=1e-11)


DROPPED = [
    MOC.with_options(dropout=0.4),
    MOS.with_options(dropout=0.4),
    MOS.with_pointwise("plif", knots=20).with_options(dropout=0.4, locked_dropout=True),
    MIXTAPE.with_options(dropout=0.4, locked_dropout=True),
    MIXTAPE.with_options(gate_dropout=0.4),
    MIXTAPE.with_options(gate_noise=0.7),
    MIXTAPE.with_pointwise("gss").with_options(dropout=0.3, gate_dropout=0.2, gate_noise=0.1),
]
STEPS, COLUMNS = 45, 3  # more tokens than share one noise generator


@pytest.mark.parametrize(("impl", "reduction"), with_reductions(ONCE))
@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_the_same_seed_gives_the_same_loss(case, reduction, impl):
    """Masks and noise depend on the seed alone, and are those of `forward`."""
    steps = 4 if impl == "triton" else STEPS
    target = (torch.arange(steps * COLUMNS) * 7 % CLASSES).view(steps, COLUMNS)
    head, features = case.build(classes=CLASSES).train(), make_features(steps, COLUMNS)
    upstream = make_features(steps, COLUMNS, seed=9)[..., 0]
    options = {"reduction": reduction, "label_smoothing": 0.1,
               "upstream": upstream if reduction == "none" else upstream[0, 0]}  # fmt: skip
    features.requires_grad_()
    sizes = [1, 5, 20, 64, steps * COLUMNS] if impl != "triton" else [5, steps * COLUMNS]
    want = compare(head, features, target, impl, sizes, **options)
    torch.manual_seed(0)
    nll = -head(features).detach().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    nll = nll if reduction == "none" else nll.sum()
    torch.testing.assert_close(nll, want.values["nll"], rtol=1e-9, atol=1e-11)
    other = run(head, features, target, impl=impl, seed=1, **options)
    assert not torch.allclose(other.values["loss"], want.values["loss"], rtol=1e-6)
    quiet = run(head.eval(), features, target, impl=impl, **options)
    assert not torch.allclose(quiet.values["loss"], want.values["loss"], rtol=1e-6)


# -- a bias of −∞ rules a class out --------------------------------------------------------------

# a learned GSS has 0 · (−∞) as the gradient of its parameters
RULED_OUT = [
    case
    for case in PRODUCT
    if case.pointwise in ("identity", "sigsoftmax", "gss")
    and not case.pointwise_options.get("learn")
]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", RULED_OUT, ids=str)
def test_a_class_that_is_ruled_out_has_an_infinite_loss(case, impl, smoothing, reduction):
    """Gradients are finite, and those of all implementations are equal."""
    head, features = case.build(), make_features(3).requires_grad_()
    with torch.no_grad():
        head.bias[3] = -torch.inf
    options = {"label_smoothing": smoothing, "reduction": reduction, "entropy": True,
               "accuracy": True, "z_loss": 0.05}  # fmt: skip
    upstream = {"upstream": UPSTREAM[:3]} if reduction == "none" else {}
    for first in (3, 0):
        is_out = first == 3
        want = compare(head, features, torch.tensor([first, 1, 6]), impl, **upstream,
                       **options)  # fmt: skip
        assert all(gradient.isfinite().all() for gradient in want.gradients.values())
        others = [smoothing > 0] * 2  # with label smoothing every class is a target
        each = {"nll": [is_out, False, False], "loss": [is_out or smoothing > 0, *others]}
        for name, infinite in each.items():
            infinite = infinite if reduction == "none" else any(infinite)
            assert want.values[name].isinf().tolist() == infinite


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", [case for case in RULED_OUT if case.head == "mos"], ids=str)
def test_a_target_that_every_component_rules_out_spoils_no_other(case, impl):
    """Its loss is infinite; it adds nothing to the gradients, and spoils none of the others."""
    head, features = case.build(), make_features(2).requires_grad_()
    with torch.no_grad():
        head.bias[5] = -torch.inf
    options = {"impl": impl, "reduction": "none"}
    found = run(head, features, torch.tensor([5, 2]), upstream=UPSTREAM[:2], **options)
    assert found.values["loss"].isinf().tolist() == [True, False]
    other = run(head, features[1:], torch.tensor([2]), upstream=UPSTREAM[1:2], **options)
    del found.gradients["features"], other.gradients["features"]
    assert_same(Outcome({}, found.gradients), Outcome({}, other.gradients))


# -- more than one use ---------------------------------------------------------------------------


def test_gradients_add_up_over_batches_and_uses_of_a_tied_weight(case, reduction, impl):
    """The matrix is also the embedding that makes the features, and decays."""
    weight = torch.nn.Parameter(make_features(CLASSES, feature_dim=4))
    head = case.build(classes=CLASSES, weight=weight, embed_dim=4)
    assert head.weight is weight
    gradients = []
    for each in (impl, "reference"):
        head.zero_grad()
        features = torch.nn.functional.embedding(torch.arange(TOKENS), weight).tanh()
        options = {"impl": each, "reduction": reduction, "label_smoothing": 0.1}
        first = head.nll(features, TARGET, **options).loss.sum()
        second = head.nll(make_features(TOKENS), TARGET, **options).loss.sum()
        (0.3 * first - 1.7 * second + (weight**3).sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in head.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)
