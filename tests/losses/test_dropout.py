"""The same seed gives the same masks and noise, for every implementation and size of chunks."""

import pytest
import torch

from tests.heads.cases import MIXTAPE, MOC, MOS, make_features
from tests.losses.implementations import (
    CLASSES,
    ONCE,
    assert_same,
    memory_for,
    run,
    some_of,
    with_reductions,
)

CASES = [
    MOC.with_options(dropout=0.4),
    MOS.with_options(dropout=0.4),
    MOS.with_pointwise("plif", knots=20).with_options(dropout=0.4, locked_dropout=True),
    MIXTAPE.with_options(dropout=0.4, locked_dropout=True),
    MIXTAPE.with_options(gate_dropout=0.4),
    MIXTAPE.with_options(gate_noise=0.7),
    MIXTAPE.with_pointwise("gss").with_options(dropout=0.3, gate_dropout=0.2, gate_noise=0.1),
]
STEPS, COLUMNS = 45, 3  # more tokens than share one noise generator
TARGET = (torch.arange(STEPS * COLUMNS) * 7 % CLASSES).view(STEPS, COLUMNS)


@pytest.mark.parametrize(("impl", "reduction"), with_reductions(ONCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_seed_gives_the_same_loss(case, reduction, impl):
    steps = 4 if impl == "triton" else STEPS
    target = TARGET[:steps]
    head = case.build(classes=CLASSES).train()
    features = make_features(steps, COLUMNS).requires_grad_()
    upstream = make_features(steps, COLUMNS, seed=9)[..., 0]
    options = {"reduction": reduction, "label_smoothing": 0.1,
               "upstream": upstream if reduction == "none" else upstream[0, 0]}  # fmt: skip

    want = run(head, features, target, impl="reference", **options)
    for tokens in some_of([1, 5, 20, 64, steps * COLUMNS], impl):
        memory = memory_for(head, tokens, impl)
        got = run(head, features, target, impl=impl, memory=memory, **options)
        assert_same(got, want)

    other = run(head, features, target, impl=impl, seed=1, **options)
    assert not torch.allclose(other.values["loss"], want.values["loss"], rtol=1e-6)
    quiet = run(head.eval(), features, target, impl=impl, **options)
    assert not torch.allclose(quiet.values["loss"], want.values["loss"], rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_evaluation_during_training_uses_the_same_masks(case):
    head, features = case.build(classes=CLASSES).train(), make_features(STEPS, COLUMNS)
    want = run(head, features, TARGET, impl="reference", upstream=torch.tensor(1.0))
    torch.manual_seed(0)
    log_probs = head(features).detach()
    nll = -log_probs.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(nll, want.values["nll"], rtol=1e-9, atol=1e-11)
