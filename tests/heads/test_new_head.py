"""A new pointwise function or structure is one module.

Its name, options, losses and training follow from its registration.
"""

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import HEADS, POINTWISE, MixtureOfSoftmaxes, build_head
from highrank_plugins.heads import tokens as tokens_of_archs
from highrank_plugins.heads.registry import Registry
from tests.heads.cases import STRUCTURES, make_features
from tests.heads.toys import TOYS, toys  # noqa: F401  (a fixture)
from tests.losses.implementations import CLASSES, TARGET, TOKENS

pytestmark = pytest.mark.usefixtures("toys")


def colder(base, method):
    """Return a subclass of a structure with a method whose logits or log P are divided by 3."""

    def divided(self, *inputs):
        found = getattr(base, method)(self, *inputs) / 3
        return found.log_softmax(-1) if method == "chunk_log_probs" else found

    return type(f"Cold{base.__name__}", (base,), {method: divided})


REPLACED = [
    (case, method)
    for case in STRUCTURES
    for method in ("chunk_logits", "chunk_log_probs")
    if hasattr(type(case.build()), method)
]


@pytest.mark.parametrize(("case", "method"), REPLACED, ids=str)
def test_a_subclass_with_another_function_has_its_own_loss(case, method):
    """The fused loss and the measures of its base are of another function."""
    head = case.build(classes=CLASSES)
    head.__class__ = colder(type(head), method)
    features = make_features(TOKENS)
    want = -head(features).gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
    for impl in ("auto", "chunked", "reference"):
        torch.testing.assert_close(head.nll(features, TARGET, impl=impl).loss, want)
    with pytest.raises(ValueError, match="no fused loss"):
        head.nll(features, TARGET, impl="fused")
    assert not head.linear_logits and not head.weights_by_class
    tensors = head.tensors()
    z = head.logit_vectors(features, tensors)
    torch.testing.assert_close(head.nll_of_logits(z, TARGET, features, tensors), want)


def test_options_that_a_subclass_adds_are_constants_too(monkeypatch):
    class Sharp(MixtureOfSoftmaxes):
        def __init__(
            self, *args, context_scale=1.0, locked_dropout=False, sharp: float = 2, b="x", **rest
        ):
            super().__init__(*args, context_scale=context_scale, **rest)
            self.sharp, self.hidden = sharp, b

    HEADS.register("sharp")(Sharp)
    try:
        head = build_head("sharp", num_classes=5, feature_dim=3, sharp=4.0)
        assert HEADS.constants(head) == {"context_scale": 1.0, "sharp": 4.0}
        assert HEADS.hidden_options(head) == ["b"]
        assert repr(HEADS.options("sharp")["sharp"]) == "2.0"  # a whole number for a float
        monkeypatch.setattr(Sharp, "constants", ("b",))
        with pytest.raises(UserError, match=r"sharp: `constants` of .*Sharp.* lists 'b', but"):
            HEADS.constants(head)
    finally:
        HEADS.unregister("sharp")


def test_a_subclass_may_keep_the_fused_loss_of_its_base():
    base = type(STRUCTURES[0].build())
    assert type("Same", (base,), {"extra_repr": lambda self: "same"}).fused is base.fused
    changed = type("Kept", (base,), {"chunk_logits": base.chunk_logits, "fused": base.fused})
    assert changed.fused is base.fused


class Named:
    def __init__(self, name: str = "a"): ...


class Text:
    constants = "scale"


@pytest.mark.parametrize(("cls", "message"), [
    (Named, "the argument name of its"), (Text, "`constants` is text; write a tuple"),
])  # fmt: skip
def test_classes_whose_arguments_would_fail_later_are_refused(cls, message):
    with pytest.raises(UserError, match=message):
        Registry("head").register("own")(cls)


@pytest.mark.parametrize(("registry", "name", "message"), [
    *((registry, name, "already registered") for registry, name, _ in TOYS),
    *((Registry("head"), name, "a name has letters") for name in ("with-dash", "a b", "", "3d")),
])  # fmt: skip
def test_names_that_no_option_can_have_are_refused(registry, name, message):
    with pytest.raises(ValueError, match=f"{name!r}.*{message}"):
        registry.register(name)(object)


def test_an_argument_that_is_called_name_is_refused():
    class Named:
        def __init__(self, name: str = "a"): ...

    with pytest.raises(ValueError, match=r"^head 'named' of class Named: the argument name of its"):
        Registry("head").register("named")(Named)


@pytest.mark.parametrize(
    ("registry", "name"), [(POINTWISE, "mos"), (HEADS, "plif"), (HEADS, "mos_plif")]
)
def test_two_layers_cannot_have_one_name_in_architectures(registry, name, monkeypatch):
    monkeypatch.setattr(registry, "_listeners", [tokens_of_archs])
    with pytest.raises(ValueError, match=f"'{name}' would name two layers, .* and .*; choose"):
        method = "apply_to" if registry is POINTWISE else "chunk_log_probs"
        registry.register(name)(type("Own", (registry.base,), {method: lambda *inputs: None}))
    assert name not in registry.names()
