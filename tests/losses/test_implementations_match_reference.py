"""Every implementation against plain autograd in float64: values and every gradient, to 1e-9."""

import pytest
import torch

from highrank_plugins.heads import build_pointwise
from highrank_plugins.losses import chunking, mixtape, runner
from highrank_plugins.losses.kernels.compiled import FAMILIES
from highrank_plugins.losses.nll import FUSED
from tests.heads.cases import CASES, STRUCTURES, make_features
from tests.losses.implementations import (
    CLASSES,
    FULL,
    IGNORED,
    ONCE,
    TARGET,
    TOKENS,
    UPSTREAM,
    WEIGHT,
    assert_same,
    memory_for,
    recorded_chunks,
    run,
    some_of,
)

CHUNKS = [1, 3, TOKENS, None]  # tokens; None is the default budget
CALLS = [
    {},
    {"label_smoothing": 0.1},
    {"weight": WEIGHT},
    {"ignore_index": IGNORED},
    {"accuracy": True},
    {"entropy": True},
    {"z_loss": 0.05},
    {"z_loss": 0.05, "label_smoothing": 0.1},
    FULL,
]

every_implementation = pytest.mark.parametrize("impl", ONCE)


def compare(head, features, target, impl, **options):
    want = run(head, features, target, impl="reference", **options)
    assert want.gradients
    for tokens in some_of(CHUNKS, impl):
        memory = tokens and memory_for(head, tokens, impl)
        got = run(head, features, target, impl=impl, memory=memory, **options)
        assert_same(got, want)
    return want


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


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case, impl", list(every_head()))
def test_every_head_matches(case, impl, reduction):
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    # both for each kernel in test_every_option_matches; its interpreter is slow
    smoothings = (0.0, 0.1) if impl != "triton" else (0.1 * (reduction == "sum"),)
    for smoothing in smoothings:
        want = compare(head, features, TARGET, impl, reduction=reduction,
                       **{**FULL, "label_smoothing": smoothing})  # fmt: skip
        assert {"weight", "features"} <= want.gradients.keys()


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("impl", [name for name in ONCE if name != "chunked"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_block_of_several_chunks_matches(case, impl, reduction, monkeypatch):
    """Compute contexts of 35 tokens at once, and their logits in three chunks, as a GPU does.

    Mixtape has the leaves of a chunk in three blocks.
    """
    head, features = case.build(classes=CLASSES), make_features(5 * TOKENS).requires_grad_()
    options = {"reduction": reduction, "label_smoothing": 0.1}
    if reduction == "none":
        options["upstream"] = UPSTREAM.repeat(5)
    want = run(head, features, TARGET.repeat(5), impl="reference", **options)

    monkeypatch.setitem(chunking.DEFAULT_MEMORY, "cpu", (1, 1))  # the least tokens, 16
    monkeypatch.setitem(mixtape.LEAF_BLOCKS, "cpu", 3)
    monkeypatch.setitem(runner.INPUT_MEMORY, "cpu", 2**28)
    blocks, inputs = [], type(head).token_inputs
    monkeypatch.setattr(
        type(head),
        "token_inputs",
        lambda self, x, *rest: blocks.append(len(x)) or inputs(self, x, *rest),
    )
    got = run(head, features, TARGET.repeat(5), impl=impl, **options)
    assert_same(got, want)
    assert set(blocks) == {5 * TOKENS}


@pytest.fixture
def new_memory_is_nan():
    """Fill what `torch.empty` returns with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("filter_gradients", [False, True])
@pytest.mark.parametrize("impl", [name for name in ONCE if name != "chunked"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_content_of_new_memory_does_not_matter(case, impl, filter_gradients, new_memory_is_nan):
    """The first chunk writes the sums of gradients, whose memory held anything."""
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    with torch.no_grad():
        head.bias[6:10] = -1e4  # the filter leaves out classes without probability
    assert torch.empty(2).isnan().all()
    want = run(head, features, TARGET, impl="reference", reduction="sum")
    for tokens in (3, TOKENS):
        memory = memory_for(head, tokens, impl)
        got = run(head, features, TARGET, impl=impl, reduction="sum", memory=memory,
                  filter_gradients=filter_gradients)  # fmt: skip
        assert_same(got, want)


@every_implementation
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("options", CALLS, ids=lambda options: "+".join(options) or "nothing")
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_every_option_matches(case, options, reduction, impl):
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    compare(head, features, TARGET, impl, reduction=reduction, **options)


@every_implementation
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
@pytest.mark.parametrize("leading", [(), (0,), (0, 3), (2, 3), (2, 1, 2)], ids=str)
def test_any_shape_matches_even_an_empty_one(case, leading, reduction, impl):
    head, features = case.build(classes=CLASSES), make_features(*leading).requires_grad_()
    target = torch.arange(features[..., 0].numel()).reshape(leading)
    upstream = make_features(*leading)[..., 0] if reduction == "none" else torch.tensor(1.3)
    want = compare(head, features, target, impl, reduction=reduction, upstream=upstream,
                   label_smoothing=0.1, accuracy=True)  # fmt: skip
    assert want.values["loss"].shape == (leading if reduction == "none" else ())
    assert want.gradients["features"].shape == features.shape


@every_implementation
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_non_contiguous_input_matches(case, reduction, impl):
    head = case.build(classes=CLASSES)
    features = make_features(3, 2).transpose(0, 1).requires_grad_()
    target = TARGET[:6].view(3, 2).t()
    weight = WEIGHT[:6].view(3, 2).t()
    upstream = make_features(3, 2)[..., 0].t() if reduction == "none" else torch.tensor(-0.4)
    assert not features.is_contiguous() and not target.is_contiguous()
    compare(head, features, target, impl, reduction=reduction, weight=weight, upstream=upstream,
            label_smoothing=0.1)  # fmt: skip


@every_implementation
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_batch_of_ignored_tokens_matches(reduction, impl):
    head, features = STRUCTURES[2].build(classes=CLASSES), make_features(3).requires_grad_()
    want = compare(head, features, torch.full((3,), -100), impl, reduction=reduction,
                   ignore_index=-100, label_smoothing=0.1, upstream=torch.tensor(2.0))  # fmt: skip
    assert not want.values["loss"].any() and not want.values["nll"].any()
    assert all(not gradient.any() for gradient in want.gradients.values())


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("tokens", [1, 3, TOKENS])
def test_chunks_have_the_requested_size(tokens, reduction):
    head, features = STRUCTURES[2].build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    with recorded_chunks(head) as sizes:
        run(head, features, TARGET, reduction=reduction, impl="chunked",
            memory=memory_for(head, tokens))  # fmt: skip
    assert sizes and max(sizes) <= tokens
    assert sum(sizes) == TOKENS * (2 if reduction == "none" else 1)  # "none" computes again


def test_auto_matches_the_reference():
    head, features = STRUCTURES[2].build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    assert_same(run(head, features, TARGET, **FULL),
                run(head, features, TARGET, impl="reference", **FULL))  # fmt: skip
