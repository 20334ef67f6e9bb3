"""A new pointwise function or structure is one module.

Its name, options, losses and training follow from its registration.
"""

import pytest
import torch

from highrank_plugins.heads import (
    build_head,
    head_names,
    head_options,
    pointwise_names,
    pointwise_options,
)
from tests.heads.cases import STRUCTURES, Case, make_features
from tests.heads.toys import TOYS, toys  # noqa: F401  (a fixture)
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS, assert_same, memory_for, run

pytestmark = pytest.mark.usefixtures("toys")


def new_heads():
    """Return the new structure with every function, and the new function in every structure."""
    residual = [Case("residual", pointwise) for pointwise in ("bend", "plif", "gss")]
    return [*residual, *(case.with_pointwise("bend") for case in STRUCTURES)]


def build(case):
    return case.build(classes=CLASSES, **({"embed_dim": 4} if case.head == "residual" else {}))


def test_new_layers_are_listed():
    assert "residual" in head_names() and "bend" in pointwise_names()
    assert head_options("residual") == {"inner_bias": True}
    assert pointwise_options("bend") == {"start": 0.5}
    with pytest.raises(ValueError, match="did you mean 'residual'"):
        build_head("resdual", num_classes=3, feature_dim=2)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_chunked_equals_reference(reduction):
    for case in new_heads():
        head, features = build(case), make_features(TOKENS).requires_grad_()
        options = {**FULL, "reduction": reduction}
        want = run(head, features, TARGET, impl="reference", **options)
        for tokens in (1, 3, TOKENS):
            memory = memory_for(head, tokens)
            assert_same(run(head, features, TARGET, memory=memory, **options), want)
        if case.pointwise == "bend":
            assert want.gradients["pointwise.a"] != 0


def test_new_layers_learn():
    for case in new_heads():
        head, features = build(case).train(), make_features(TOKENS)
        optimiser = torch.optim.Adam(head.parameters(), lr=0.1)
        losses = []
        for _ in range(15):
            optimiser.zero_grad()
            loss = head.nll(features, TARGET, reduction="sum").loss
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0], case


@pytest.mark.parametrize("registry, name", TOYS, ids=lambda x: str(getattr(x, "kind", x)))
def test_a_name_can_be_registered_only_once(registry, name):
    with pytest.raises(ValueError, match=f"{name}.*already registered"):
        registry.register(name)(object)
