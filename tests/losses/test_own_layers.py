"""A layer of one's own learns under every implementation, as by plain torch, or is refused.

The right value is the loss of the whole batch by plain autograd of `forward`, with the same seed.
"""

import copy
import logging
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import highrank_plugins
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
from highrank_plugins.heads.pointwise import Pointwise, Softcap
from highrank_plugins.own_layers.ours import is_our_function
from tests.losses import own_functions as functions
from tests.losses import own_structures as structures
from tests.losses.own_functions import CLASSES, SIZE, TARGET, TOKENS, define, parameter
from tests.losses.own_structures import logits, made, with_adapter, wrapped

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(autouse=True)
def fixed_seed(caplog):
    torch.manual_seed(0)
    numpy.random.seed(0)
    numpy.random.rand()  # the next one leaves the array of the state as it is
    caplog.set_level(logging.ERROR, "highrank_plugins")


def features(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, SIZE, dtype=torch.float64, generator=rng).requires_grad_()


def gradients(head, loss, x):
    return torch.autograd.grad(loss, [x, *head.parameters()], materialize_grads=True)


def by_plain_torch(head, x):
    torch.manual_seed(5)
    return -head.log_probs(x).gather(-1, TARGET[:, None]).sum()


def by_loss(head, x, impl="auto", reduction="sum", **options):
    torch.manual_seed(5)
    return head.nll(x, TARGET, impl=impl, reduction=reduction, **options).loss.sum()


def check_right(head, impls=functions.IMPLEMENTATIONS):
    """Check every implementation, reduction and chunk size; those refused must name the class.

    The plain loss has a graph that the check of a layer must not break.
    """
    x = features()
    if hasattr(head, "place"):
        x = head.place(x).detach().requires_grad_()
    value = by_plain_torch(head, x)
    random = any("rop" in type(m).__name__ for m in head.modules())  # masks differ by chunk
    seen, right = set(), None
    for impl in impls:
        for reduction in ("sum", "none"):
            for memory in (None,) if random else (None, 8 * 4 * CLASSES * 9 * 2):
                try:
                    loss = by_loss(head, x, impl, reduction, memory=memory)
                except ValueError as error:
                    assert "no fused loss" in str(error) or type(head).__name__ in str(error)
                    continue
                seen.add(impl)
                assert loss.item() == pytest.approx(value.item(), rel=1e-9)
                right = right or gradients(head, value, x)
                torch.testing.assert_close(gradients(head, loss, x), right, **EXACT)
    assert {"reference", "chunked", "auto"} <= seen
    with torch.no_grad():
        assert by_loss(head.eval(), x).item() == pytest.approx(by_plain_torch(head, x).item())


@pytest.mark.parametrize("structure", ["softmax", "moc", "mos", "mixtape"])
@pytest.mark.parametrize("number", range(len(functions.RIGHT_FUNCTIONS)))
def test_a_function_of_ones_own_learns(structure, number):
    options = {} if structure == "softmax" else {"components": 4}
    head = build_head(structure, num_classes=CLASSES, feature_dim=SIZE, **options,
                      pointwise=functions.RIGHT_FUNCTIONS[number]())  # fmt: skip
    for p in head.parameters():
        nn.init.normal_(p)
    check_right(head.double())


@pytest.mark.parametrize("number", range(len(structures.RIGHT_STRUCTURES)))
def test_a_structure_of_ones_own_learns(number):
    check_right(structures.RIGHT_STRUCTURES[number]().double())


def refused(impl, build, said):
    head = build().double()
    with pytest.raises(UserError, match=f"{type(head).__name__}.*({said})") as error:
        by_loss(head, features(), impl)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", functions.REFUSED_FUNCTIONS)
@pytest.mark.parametrize("impl", functions.IMPLEMENTATIONS)
def test_a_function_that_breaks_the_contract_is_refused(name, impl):
    function, said = functions.REFUSED_FUNCTIONS[name]
    refused(impl, made(define(Softmax), pointwise=function()), said)


@pytest.mark.parametrize("name", structures.REFUSED_STRUCTURES)
def test_a_structure_that_breaks_the_contract_is_refused(name):
    for impl in ("reference", "auto"):
        # plain autograd computes what these do
        if impl == "auto" or not ("clipped" in name or name == "rare classes"):
            refused(impl, *structures.REFUSED_STRUCTURES[name])


def test_a_wrapped_part_is_refused_without_gradients():
    with torch.no_grad(), pytest.raises(UserError, match="never calls latent"):
        by_loss(wrapped(with_adapter)().double().eval(), features())


def test_what_only_plain_autograd_computes_names_that():
    head, x = made(structures.WrongLoss)().double(), features()
    with pytest.raises(UserError, match=r"Own: .*--head-loss reference"):
        by_loss(head, x, "chunked")
    value = by_plain_torch(head, x)
    right = gradients(head, value, x)
    for impl in ("reference", "fused"):  # which call no chunk_nll
        found = by_loss(head, x, impl)
        assert found.item() == pytest.approx(value.item(), rel=1e-12)
        torch.testing.assert_close(gradients(head, found, x), right, **EXACT)


def test_auto_leaves_a_fused_loss_that_is_wrong(caplog):
    caplog.set_level(logging.WARNING, "highrank_plugins")
    head = made(structures.ContextsFromMatrix, components=3)().double()
    with pytest.raises(UserError, match=r"gradient of weight is .*\(--head-loss chunked"):
        by_loss(head, features(), "fused")
    assert caplog.text == ""
    by_loss(head, features())
    assert "Own: the norm of the gradient of weight" in caplog.text


def test_autocast_does_not_blunt_the_check():
    head = build_head("softmax", num_classes=1000, feature_dim=64)
    head.register_forward_pre_hook(lambda module, inputs: (1.1 * inputs[0],))
    x, y = torch.randn(200, 64), torch.randint(0, 1000, (200,))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UserError, match="forward"):
        head.nll(x, y)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_own_layers_learn_under_checkpointing(reduction, reentrant):
    head, x = made(structures.ReadsOwnMatrix, pointwise=functions.Dropped())().double(), features()
    right = gradients(head, by_plain_torch(head, x), x)
    torch.manual_seed(5)

    def loss(x):
        return head.nll(x, TARGET, reduction=reduction).loss.sum()

    checkpoint(loss, x, use_reentrant=reentrant).backward()
    torch.testing.assert_close([p.grad for p in head.parameters()], [*right[1:]], **EXACT)


@pytest.mark.parametrize("impl", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("structure", [Softmax, MixtureOfSoftmaxes])
def test_normal_noise_is_no_fault(structure, impl):
    for classes in (23, 32, 1000):
        head = structure(classes, SIZE, pointwise=functions.Noisy()).double()
        target = torch.zeros(TOKENS, dtype=torch.int64)
        assert head.nll(features(), target, impl=impl, reduction="mean").loss.isfinite()


def test_smoothing_needs_every_class():
    head = logits(lambda self, z, *_: z.index_fill(-1, torch.tensor([0]), -torch.inf))().double()
    x, target = features(), torch.ones(TOKENS, dtype=torch.int64)
    assert head.nll(x, target).loss.isfinite().all()
    with pytest.raises(UserError, match="label smoothing needs every class to be possible"):
        head.nll(x, target, label_smoothing=0.1)


@pytest.mark.parametrize("way", ["data", "float", "unused", "right"])
def test_a_parameter_that_does_not_learn_is_named(way, caplog):
    def tempered(self, z, *_):
        factor = {"data": self.t.data, "float": float(self.t), "right": self.t}.get(way, 1.0)
        return factor * z

    caplog.set_level(logging.WARNING, "highrank_plugins")
    by_loss(logits(tempered, {"t": lambda: parameter(1.0)})().double(), features())
    said = [r.getMessage() for r in caplog.records if "does not learn" in r.getMessage()]
    assert len(said) == (way != "right") and all("no gradient for t," in text for text in said)


def test_ours_are_not_checked(monkeypatch):
    monkeypatch.setattr("highrank_plugins.losses.nll.checked_implementation", None)
    for cls, options in ((Softmax, {"pointwise": "plif"}), (Mixtape, {}), (MixtureOfSoftmaxes, {})):
        by_loss(made(cls, **options)().double(), features())


@pytest.mark.parametrize("package", [highrank_plugins, torch])
def test_a_package_whose_name_begins_as_ours_is_not_ours(package):
    """Recognise its code as the user's: a fused loss would leave a method of it out."""
    for name, right in (("", True), ("_tools", False)):
        scope = {}
        file = f"{Path(package.__file__).parent}{name}/scaled.py"
        exec(compile("def scaled(): pass", file, "exec"), scope)
        assert is_our_function(scope["scaled"]) == right


def test_numbers_of_a_function_may_change_after_it_is_built():
    """A compiled kernel must not keep the cap with which a function was built."""
    head, x = made(Softmax, pointwise=Softcap(30.0))(), features().float()
    head.pointwise.cap = 2.0
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))


@pytest.mark.parametrize(("register", "cls", "said"), [
    (register_pointwise, type("Bend", (Pointwise,), {"forward": None}), "has no apply_to"),
    (register_head, type("Bend", (Head,), {}), "no chunk_logits and it has no chunk_log_prob"),
    (register_head, type("Bend", (nn.Module,), {}), "is not a Head"),
    (register_pointwise, torch.relu, "is not a Pointwise; register a class"),
])  # fmt: skip
def test_what_is_no_layer_cannot_be_registered(register, cls, said):
    for _ in range(2):  # it is not kept
        with pytest.raises(UserError, match=said):
            register("bend_that_is_none")(cls)
    if callable(cls):
        with pytest.raises(UserError, match=r"give the name of the class, as in @register_"):
            register(cls)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_learns(dtype, autocast):
    head = made(MixtureOfSoftmaxes, components=3, pointwise=functions.ReadsBoth())().to(dtype)
    exact, x = copy.deepcopy(head).double(), features().to(dtype).detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        head.nll(x, TARGET, reduction="sum").loss.backward()
    exact.nll(x.detach().double(), TARGET, reduction="sum", impl="reference").loss.backward()
    for p, right in zip(head.parameters(), exact.parameters(), strict=True):
        error = (p.grad.double() - right.grad).norm() / right.grad.norm()
        assert error < (1e-5 if dtype == torch.float32 and not autocast else 0.1)
