"""`nll` against formulas (NumPy's oracle, torch's cross-entropy, numbers by hand), and mistakes."""

import math
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from highrank_plugins.heads import build_head
from highrank_plugins.losses import IMPLEMENTATIONS
from highrank_plugins.losses.kernels.cpp.passes import check_available
from tests.heads import oracle
from tests.heads.cases import SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import CLASSES, FULL, IGNORED, TARGET, TOKENS, WEIGHT, inputs, run

every_choice = pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "auto"])


@every_choice
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_losses_equal_those_of_the_oracle(case, smoothing, impl):
    head, features = inputs(case)
    log_p = head(features).detach().numpy()
    target = TARGET.clone()
    target[:2] = torch.from_numpy(log_p[:2].argmax(-1))  # two hits
    target[TARGET == IGNORED] = CLASSES + 3
    options = {**FULL, "z_loss": 0.0, "label_smoothing": smoothing, "impl": impl}
    options["ignore_index"] = CLASSES + 3
    counted = (TARGET != IGNORED).numpy()
    loss, nll = oracle.losses(log_p, target.numpy(), WEIGHT.numpy(), smoothing, CLASSES + 3)
    hits = (log_p.argmax(-1) == target.numpy()) * counted
    assert 2 <= hits.sum() < counted.sum()
    entropy = -(np.exp(log_p) * log_p).sum(-1) * counted
    want = {"loss": loss, "nll": nll, "entropy": entropy, "correct": hits}
    weights = {"loss": (WEIGHT.numpy() * counted).sum()}
    for reduction in ("none", "sum", "mean"):
        found = head.nll(features, target, reduction=reduction, **options)
        for name, expected in want.items():
            if reduction != "none":
                tokens = weights.get(name, counted.sum()) if reduction == "mean" else 1
                expected = expected.sum() / tokens
            got = getattr(found, name)
            assert got.requires_grad == (name == "loss")
            assert name != "correct" or reduction == "mean" or not got.is_floating_point()
            assert got.shape == expected.shape
            np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-9)


NOTHING = {"ignored": (TOKENS, None), "no tokens": (0, None)}
NOTHING["weights of 0"] = (TOKENS, torch.zeros(TOKENS))


@every_choice
@pytest.mark.parametrize("nothing", NOTHING)
def test_a_mean_of_nothing_is_nan_with_gradients_of_zero(case, nothing, impl):
    """Have gradients of 0, as in torch: NaN would spoil the sums of other batches."""
    tokens, weight = NOTHING[nothing]
    head, features = inputs(case, tokens)
    target = TARGET[:tokens] if weight is not None else torch.full((tokens,), -100)
    assert weight is not None or F.cross_entropy(torch.zeros(tokens, CLASSES), target).isnan()
    got = run(head, features, target, impl=impl, reduction="mean", ignore_index=-100,
              weight=weight, accuracy=True, entropy=True)  # fmt: skip
    undefined = ["loss"] if weight is not None else ["loss", "nll", "correct", "entropy"]
    assert all(got.values[name].isnan() for name in undefined)
    assert got.gradients and not any(gradient.any() for gradient in got.gradients.values())


def test_a_call_with_a_target_is_nll(case):
    """Hooks see it, such as those of FSDP2."""
    head, features, seen = case.build(classes=CLASSES), make_features(TOKENS), []
    head.register_forward_hook(lambda module, inputs, out: seen.append(out))
    for options in (FULL, FULL | {"reduction": "sum"}):
        found = []
        for call in (head, head.nll):
            head.zero_grad()
            out = call(features, TARGET, **options)
            assert call is not head or seen[-1] is out
            out.loss.sum().backward()
            found.append([*out, *(p.grad for p in head.parameters())])
        torch.testing.assert_close(*found, rtol=0, atol=0)
    assert torch.equal(head(features, target=None), head.log_probs(features))
    compute = head.logits if head.has_logits else head.log_probs
    assert torch.equal(head(features, scores=True), compute(features))


@every_choice
def test_values_equal_those_computed_by_hand(case, impl):
    """Logits log 2, 0, 0 of each of K softmaxes: the log-sum-exp is log 4, P 1/2, 1/4 and 1/4."""
    head = case.build(classes=3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([2.0, 1.0, 1.0]).log())
    target = torch.tensor([0, 2])
    out = head.nll(make_features(2), target, entropy=True, z_loss=0.1, impl=impl)
    softmaxes = head.components if case.head == "mos" else 1
    penalty = 0.1 * softmaxes * math.log(4) ** 2
    assert out.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert (out.loss - out.nll).tolist() == pytest.approx([penalty] * 2)


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_mean_keeps_small_gradients_in_half_precision(dtype, impl):
    """Gradients of a mean are no smaller before they are cast than those of a sum."""
    head = SOFTMAX.build(classes=CLASSES, dtype=dtype)
    features, target = make_features(600).to(dtype).requires_grad_(), torch.arange(600) % CLASSES
    total = run(head, features, target, impl=impl, reduction="sum", upstream=torch.tensor(1.0))
    mean = run(head, features, target, impl=impl, reduction="mean", upstream=torch.tensor(600.0))
    torch.testing.assert_close(mean.gradients, total.gradients)


# -- mistakes: a ValueError that names the argument, its value and what is allowed ----------------

LONG = torch.long
CALLS = [
    # changed arguments, what the message says
    ({"impl": "chuncked"}, ["impl", "chuncked", "auto, reference"]),
    ({"reduction": "sums"}, ["reduction", "none, sum, mean"]),
    ({"label_smoothing": 1.0}, ["label_smoothing", "[0, 1)", "1.0"]),
    ({"target": torch.tensor([0, CLASSES, 1])}, ["target", f"{CLASSES}", f"[0, {CLASSES})"]),
    ({"target": torch.tensor([-100, 0, 1])}, ["target", "-100", f"[0, {CLASSES})", "ignore_index"]),
    ({"target": torch.tensor([-1, 0, -100]), "ignore_index": -100}, ["target", "-1"]),
    ({"target": torch.zeros(3, 1, dtype=LONG)}, ["target", "(3,)", "(3, 1)"]),
    ({"target": torch.zeros(3, dtype=torch.int32)}, ["target", "int64", "int32"]),
    ({"target": [0, 1, 2]}, ["target", "expected a tensor, got list"]),
    ({"target": torch.zeros(3, dtype=LONG, device="meta")}, ["target", "on cpu", "meta"]),
    ({"weight": torch.ones(3, device="meta")}, ["weight", "on cpu", "meta"]),
    ({"weight": torch.ones(())}, ["weight", "(3,)", "()"]),
    ({"weight": torch.ones(CLASSES)}, ["weight", "(3,)", "a weight per class is weight[target]"]),
    ({"weight": torch.ones(3, requires_grad=True)}, ["weight", "constant", "weight.detach()"]),
    ({"z_loss": -0.1}, ["z_loss", "at least 0", "-0.1"]),
    ({"memory": 8}, ["memory", "8 bytes", "one token"]),
    ({"memory": 0, "impl": "reference"}, ["memory", "above 0", "None", "0"]),
    ({"features": torch.zeros(3, 5)}, ["features", "4", "(3, 5)"]),
    ({"features": torch.zeros(3, 4)}, ["features", "float32", "float64", "torch.autocast"]),
    ({"features": torch.zeros(3, 4).to(torch.float8_e4m3fn)}, ["features", "float8"]),
    *(({"impl": i, "filter_gradients": True}, ["filter_gradients", f"{i!r} computes every",
                                               "fused or cpp or triton"])
      for i in ("reference", "chunked")),
]  # fmt: skip


def call(case, **changed):
    arguments = {"features": make_features(3), "target": torch.tensor([0, 1, 2]), **changed}
    return case.build(classes=CLASSES).nll(**arguments)


@pytest.mark.parametrize("changed, words", CALLS, ids=lambda x: "+".join(x))
def test_messages_name_the_argument(changed, words):
    for case in STRUCTURES:
        with pytest.raises(ValueError, match=f"^{words[0]}") as error:
            call(case, **changed)
        for word in words:
            assert word in str(error.value)


@pytest.mark.parametrize("name, shape", [("weight", (CLASSES + 2, 4)), ("bias", (CLASSES - 1,))])
def test_a_matrix_or_bias_of_another_size_is_refused(name, shape):
    head = SOFTMAX.build(classes=CLASSES).float()
    setattr(head, name, torch.nn.Parameter(torch.zeros(shape)))
    features, target = make_features(3).float(), torch.tensor([0, 1, 2])
    for impl in ("cpp", "fused", "reference"):  # cpp wrote past the end of its chunk
        with pytest.raises(ValueError, match=f"^{name}: expected shape .*13"):
            head.nll(features, target, impl=impl)


def test_a_constant_that_would_not_learn_is_refused():
    head = build_head("softcap", num_classes=CLASSES, feature_dim=4)
    head.pointwise.cap = torch.nn.Parameter(torch.tensor(30.0))  # had a gradient of 0
    given = make_features(3).float(), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="cap of softcap is a constant, which no loss trains"):
        head.nll(*given)
    with torch.no_grad():  # an evaluation asks for no gradient
        assert head.nll(*given, weight=torch.ones(3, requires_grad=True)).loss.isfinite().all()


def test_what_a_head_or_a_machine_lacks_is_named(monkeypatch):
    head = STRUCTURES[3].build(classes=CLASSES)
    head.gate_hidden.float()
    with pytest.raises(ValueError, match=r"the parameter gate_hidden.weight is torch.float32"):
        head(make_features(3))
    with pytest.raises(ValueError, match="'cpp' needs a CPU, but the features are on cuda"):
        check_available(torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "triton", None)  # import triton raises ImportError
    with pytest.raises(ValueError, match=r"^impl: 'triton' needs the package triton") as error:
        call(SOFTMAX, impl="triton")
    assert "pip install" in str(error.value) and "impl='fused'" in str(error.value)
    monkeypatch.setattr(type(SOFTMAX.build()), "fused", None)
    for impl in ("fused", "triton"):
        with pytest.raises(ValueError, match="softmax has no fused loss; use impl='chunked'"):
            call(SOFTMAX, impl=impl)
