"""A layer of one's own learns under every implementation, as by plain torch, or is refused.

The right value is the loss of the whole batch by plain autograd of `forward`, with the same seed.
"""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import (
    Head,
    Mixtape,
    MixtureOfSoftmaxes,
    Softmax,
    build_head,
    register_head,
    register_pointwise,
)
from highrank_plugins.heads import Head as LogitHead
from highrank_plugins.heads.pointwise import (
    Pointwise,
    Softcap,
)
from tests.losses.own_functions import (
    CLASSES,
    IMPLEMENTATIONS,
    REFUSED_FUNCTIONS,
    RIGHT_FUNCTIONS,
    SIZE,
    TARGET,
    TOKENS,
    Dropped,
    Normed,
    PerClass,
    ReadsBoth,
    ReadsSelf,
)
from tests.losses.own_structures import (
    BufferChanges,
    ColdSoftmax,
    ContextsFromMatrix,
    CountsTokens,
    Doubled,
    DroppedFeatures,
    LooksAtOthers,
    LoRA,
    OwnContexts,
    OwnForward,
    OwnGates,
    OwnLogProbs,
    OwnMean,
    OwnPrior,
    Probabilities,
    ReadsOwnMatrix,
    Recurrent,
    SameForward,
    TwoLists,
    WrongLoss,
)


def make(cls, **options):
    head = cls(CLASSES, SIZE, **options)
    for p in head.parameters():
        nn.init.normal_(p)
    return head.double()


def wrapped(change):
    def build():
        head = make(MixtureOfSoftmaxes, components=3)
        change(head)
        return head.double()

    return build


def with_adapter(head):
    head.latent = LoRA(head.latent)


def with_sequence(head):
    head.latent = nn.Sequential(head.latent)


def with_hook(head):
    head.register_forward_hook(lambda module, inputs, output: output - 0.3)


def with_own_method(head):
    head.contexts = lambda *inputs: MixtureOfSoftmaxes.contexts(head, *inputs).sin()


RIGHT_STRUCTURES = [
    *(lambda cls=cls: make(cls) for cls in (
        ReadsOwnMatrix, DroppedFeatures, TwoLists, OwnContexts, OwnPrior, ContextsFromMatrix,
        ColdSoftmax, SameForward, Recurrent)),
    *(lambda cls=cls: make(cls, components=4, gate_dim=3) for cls in (OwnGates, OwnMean)),
    wrapped(lambda head: parametrize.register_parametrization(head, "weight", Doubled())),
    wrapped(lambda head: parametrize.register_parametrization(head.latent, "weight", Doubled())),
    wrapped(lambda head: parametrizations.weight_norm(head.latent)),
    wrapped(with_own_method),
]  # fmt: skip
REFUSED_STRUCTURES = {
    "OwnForward": (lambda: make(OwnForward), "does not call forward"),
    "OwnLogProbs": (lambda: make(OwnLogProbs), "instead of 1"),
    "Probabilities": (lambda: make(Probabilities), "instead of 1"),
    "LooksAtOthers": (lambda: make(LooksAtOthers), "depends on the other tokens"),
    "CountsTokens": (lambda: make(CountsTokens), "depends on the other tokens"),
    "BufferChanges": (lambda: make(BufferChanges), "changes its seen"),
    "adapter": (wrapped(with_adapter), "never calls latent"),
    "sequence": (wrapped(with_sequence), "'latent.weight'"),
    "hook": (wrapped(with_hook), "instead of 1"),
    "weight_norm": (wrapped(lambda head: weight_norm(head.latent)), "latent.weight"),
    "spectral_norm": (wrapped(lambda head: spectral_norm(head.latent)), "latent.weight"),
    "prune": (wrapped(lambda head: prune.random_unstructured(head.latent, "weight", 0.5)),
              "latent.weight"),
}  # fmt: skip


def gradients(head, loss, x):
    found = torch.autograd.grad(loss, [x, *head.parameters()], allow_unused=True)
    return [torch.zeros((), dtype=torch.float64) if g is None else g for g in found]


def by_plain_torch(head, x):
    torch.manual_seed(5)
    loss = -head.log_probs(x).gather(-1, TARGET[:, None]).squeeze(-1)
    return loss.sum().item(), gradients(head, loss.sum(), x)


def by_loss(head, x, impl, reduction, memory=None):
    torch.manual_seed(5)
    loss = head.nll(x, TARGET, impl=impl, reduction=reduction, memory=memory).loss.sum()
    return loss.item(), gradients(head, loss, x)


def features(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, SIZE, dtype=torch.float64, generator=rng).requires_grad_()


def check_right(head, impls=IMPLEMENTATIONS):
    """Check every implementation, reduction and chunk size; those refused must name the class."""
    x = features()
    value, grads = by_plain_torch(head, x)
    random = any("rop" in type(m).__name__ for m in head.modules())  # masks differ by chunk
    seen = set()
    for impl in impls:
        for reduction in ("sum", "none"):
            for memory in (None,) if random else (None, 8 * 4 * CLASSES * 9 * 2):
                try:
                    found, found_grads = by_loss(head, x, impl, reduction, memory)
                except ValueError as error:
                    assert "no fused loss" in str(error) or type(head).__name__ in str(error)
                    continue
                seen.add(impl)
                assert found == pytest.approx(value, rel=1e-9)
                for a, b in zip(found_grads, grads, strict=True):
                    torch.testing.assert_close(a, b.expand(a.shape), rtol=1e-9, atol=1e-9)
    assert {"reference", "chunked", "auto"} <= seen


@pytest.fixture(autouse=True)
def fixed_seed(caplog):
    torch.manual_seed(0)
    caplog.set_level(logging.ERROR, "highrank_plugins")


@pytest.mark.parametrize("structure", ["softmax", "moc", "mos", "mixtape"])
@pytest.mark.parametrize("number", range(len(RIGHT_FUNCTIONS)))
def test_a_function_of_ones_own_learns(structure, number):
    options = {} if structure == "softmax" else {"components": 4}
    head = build_head(structure, num_classes=CLASSES, feature_dim=SIZE, **options,
                      pointwise=RIGHT_FUNCTIONS[number]())  # fmt: skip
    for p in head.parameters():
        nn.init.normal_(p)
    check_right(head.double())


def test_a_parameter_per_class_learns():
    check_right(make(Softmax, pointwise=PerClass()))


@pytest.mark.parametrize("cls", REFUSED_FUNCTIONS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_function_that_breaks_the_contract_is_refused(cls, impl):
    head = make(Softmax, pointwise=cls())
    said = REFUSED_FUNCTIONS[cls]
    with pytest.raises(UserError, match=f"({cls.__name__}|Softmax).*({said})") as error:
        by_loss(head, features(), impl, "sum")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", range(len(RIGHT_STRUCTURES)))
def test_a_structure_of_ones_own_learns(number):
    check_right(RIGHT_STRUCTURES[number]())


@pytest.mark.parametrize("name", REFUSED_STRUCTURES)
@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_a_structure_that_breaks_the_contract_is_refused(name, impl):
    build, said = REFUSED_STRUCTURES[name]
    head = build()
    with pytest.raises(UserError, match=f"{type(head).__name__}.*({said})"):
        by_loss(head, features(), impl, "sum")


@pytest.mark.parametrize("cls", [WrongLoss])
def test_what_only_plain_autograd_computes_names_that(cls):
    with pytest.raises(UserError, match=f"{cls.__name__}: .*--head-loss reference"):
        by_loss(make(cls), features(), "auto", "sum")
    head, x = make(cls), features()
    value, grads = by_plain_torch(head, x)
    found, found_grads = by_loss(head, x, "reference", "sum")
    assert found == pytest.approx(value, rel=1e-12)
    for a, b in zip(found_grads, grads, strict=True):
        torch.testing.assert_close(a, b)


def test_auto_leaves_a_fused_loss_that_is_wrong(caplog):
    caplog.set_level(logging.WARNING, "highrank_plugins")
    head = make(ContextsFromMatrix)
    with pytest.raises(UserError, match=r"gradient of weight is .*\(--head-loss chunked"):
        by_loss(head, features(), "fused", "sum")
    assert caplog.text == ""
    by_loss(head, features(), "auto", "sum")
    assert "ContextsFromMatrix: the norm of the gradient of weight" in caplog.text


def test_each_new_state_of_a_layer_is_checked():
    """An adapter that comes after the first loss, and dropout that evaluation hid."""
    head, x = make(MixtureOfSoftmaxes, components=3), features()
    by_loss(head, x, "auto", "sum")
    with_adapter(head.double())
    with pytest.raises(UserError, match="never calls latent"):
        by_loss(head.double(), x, "auto", "sum")
    own = make(Softmax, pointwise=Normed()).eval()
    own.pointwise.norm.running_var.fill_(2.0)
    by_loss(own, x, "auto", "sum")
    with pytest.raises(UserError, match="elementwise"):
        by_loss(own.train(), x, "auto", "sum")


def test_the_check_leaves_random_numbers_and_buffers_as_they_were():
    found = []
    for checked in (False, True):
        head = make(DroppedFeatures)
        if checked:
            by_loss(head, features(), "auto", "sum")
        torch.manual_seed(3)
        head.nll(features(seed=1), TARGET, impl="auto").loss.sum().backward()
        found.append((torch.get_rng_state(), torch.rand(1).item()))
    assert found[0][0].equal(found[1][0])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_learns(dtype, autocast):
    head = make(MixtureOfSoftmaxes, components=3, pointwise=ReadsBoth()).to(dtype)
    exact, x = copy.deepcopy(head).double(), features().to(dtype)
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        head.nll(x, TARGET, reduction="sum").loss.backward()
    exact.nll(x.detach().double(), TARGET, reduction="sum", impl="reference").loss.backward()
    for p, right in zip(head.parameters(), exact.parameters(), strict=True):
        error = (p.grad.double() - right.grad).norm() / right.grad.norm()
        assert error < (1e-5 if dtype == torch.float32 and not autocast else 0.1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_own_layers_learn_under_checkpointing(reduction, reentrant):
    head, x = make(ReadsOwnMatrix, pointwise=Dropped()), features()
    _, grads = by_plain_torch(head, x)
    torch.manual_seed(5)

    def loss(x):
        return head.nll(x, TARGET, reduction=reduction).loss.sum()

    checkpoint(loss, x, use_reentrant=reentrant).backward()
    for p, right in zip(head.parameters(), grads[1:], strict=True):
        torch.testing.assert_close(p.grad, right.expand(p.shape), rtol=1e-9, atol=1e-9)


def test_ours_are_not_checked(monkeypatch):
    monkeypatch.setattr("highrank_plugins.losses.nll.checked_implementation", None)
    for head in (make(Softmax, pointwise="plif"), make(Mixtape), make(MixtureOfSoftmaxes)):
        by_loss(head, features(), "auto", "sum")


def test_numbers_of_a_function_may_change_after_it_is_built():
    """A compiled kernel must not keep the cap with which a function was built."""
    head = make(Softmax, pointwise=Softcap(30.0)).float()
    head.pointwise.cap = 2.0
    x = features().float()
    want = -head(x).gather(-1, TARGET[:, None]).sum()
    torch.testing.assert_close(head.nll(x, TARGET, reduction="sum").loss, want)


@pytest.mark.parametrize(
    ("register", "cls", "said"),
    [
        (register_pointwise, type("Bend", (Pointwise,), {"forward": None}), "has no apply_to"),
        (register_pointwise, type("Bend", (nn.Module,), {}), "is not a Pointwise"),
        (register_pointwise, len, "is not a Pointwise"),
        (register_head, type("Bend", (Head,), {}), "has no chunk_log_probs"),
        (register_head, type("Bend", (LogitHead,), {}), "has no chunk_logits"),
        (register_head, type("Bend", (nn.Module,), {}), "is not a Head"),
    ],
)
def test_what_is_no_layer_cannot_be_registered(register, cls, said):
    with pytest.raises(UserError, match=said):
        register("bend_that_is_none")(cls)
    with pytest.raises(UserError, match=r"give the name of the class, as in @register_"):
        register(cls)


@pytest.mark.parametrize("pointwise", [ReadsSelf, nn.Tanh(), torch.tanh])
def test_a_function_that_is_none_is_refused(pointwise):
    with pytest.raises(ValueError, match="expected a name or an instance of Pointwise"):
        Softmax(CLASSES, SIZE, pointwise=pointwise)
