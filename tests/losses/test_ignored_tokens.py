"""Ignored tokens are left out before the loss; the others keep their masks, noise and weights."""

from types import SimpleNamespace

import pytest
import torch

from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses import nll
from tests.heads.cases import MIXTAPE, MOC, MOS, SOFTMAX, make_features
from tests.losses.implementations import ONCE, assert_same, recorded_inputs, run

SHAPE = (47, 3)  # several blocks of noise
CASES = [
    SOFTMAX.with_pointwise("gss"),
    MOC.with_options(dropout=0.3),
    MOS.with_options(dropout=0.3, locked_dropout=True),
    MIXTAPE.with_options(dropout=0.3, gate_dropout=0.2, gate_noise=0.3),
]


def batch(share, seed=2):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(7, SHAPE, generator=generator)
    drawn = torch.rand(SHAPE, generator=generator)
    target[drawn < share] = -1
    options = {"weight": drawn.double() + 0.5, "ignore_index": -1, "label_smoothing": 0.1,
               "z_loss": 0.05, "accuracy": True}  # fmt: skip
    return target, options


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("impl", [name for name in ONCE if name != "triton"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_without_ignored_tokens_match_the_reference(case, impl, reduction, monkeypatch):
    """The reference computes all tokens. A GPU may compute more than are kept."""
    head, features = case.build().train(), make_features(*SHAPE).requires_grad_()
    upstream = torch.linspace(1, 2, 141).view(SHAPE) if reduction == "none" else torch.tensor(1.3)
    for share in (0.7, 0.97 if reduction == "mean" else 1.0):
        target, options = batch(share)
        options |= {"reduction": reduction, "upstream": upstream}
        want = run(head, features, target, impl="reference", **options)
        assert_same(run(head, features, target, impl=impl, **options), want)
    target, options = batch(0.7)
    options |= {"reduction": reduction, "upstream": upstream}
    monkeypatch.setattr(
        nll, "kept_rows", lambda plan: plan.ignored.argsort(stable=True)[: plan.kept_tokens]
    )
    want = run(head, features, target, impl="reference", **options)
    more = int((target >= 0).sum()) + 9
    assert_same(run(head, features, target, impl=impl, kept_tokens=more, **options), want)


@pytest.mark.parametrize("share, left_out", [(0.0, 0), (0.03, 0), (0.5, 75)])
def test_the_layer_computes_no_ignored_tokens(share, left_out, monkeypatch):
    head, (target, options) = MIXTAPE.build(), batch(share)
    sizes = recorded_inputs(head, monkeypatch)
    head.nll(make_features(*SHAPE), target, impl="fused", reduction="sum", **options)
    assert sum(sizes) == target.numel() - left_out


def test_a_gpu_is_not_asked_how_many_tokens_are_kept():
    """Device meta has no numbers, and refuses to give one."""
    ignored = torch.empty(100, dtype=torch.bool, device="meta")
    given = {"ignored": ignored, "random_state": RandomState()}

    def kept(most, **changes):
        return nll.kept_rows(SimpleNamespace(**{**given, **changes}, kept_tokens=most))

    assert len(kept(20)) == 20
    assert kept(None) is kept(99) is None
    assert kept(20, random_state=RandomState(noise_sd=0.1)) is None
