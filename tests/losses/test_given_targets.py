"""What users give as targets: padding, ruled-out classes, half precision, devices, mistakes."""

import numpy as np
import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.losses import targets, trust
from tests.heads.cases import MOS, SOFTMAX, STRUCTURES
from tests.losses.implementations import RUNNABLE

CLASSES, TOKENS, SIZE = 9, 40, 4
FEW = [impl for impl in RUNNABLE if impl != "triton"]


def drawn(seed=0):
    """Return features, labels and probabilities."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, SIZE, generator=random, dtype=torch.float64)
    q = torch.randn(TOKENS, CLASSES, generator=random, dtype=torch.float64).softmax(-1)
    return x.requires_grad_(), torch.randint(CLASSES, (TOKENS,), generator=random), q


def build(case):
    torch.manual_seed(1)
    options = {"components": 3} if case.head == "mos" else {}
    return build_head(case.head, num_classes=CLASSES, feature_dim=SIZE, **options).double()


@pytest.mark.parametrize("impl", FEW)
@pytest.mark.parametrize("padding", [1, 2, 5])
@pytest.mark.parametrize("kind", ["probabilities", "samples", "teacher"])
def test_rows_of_ignored_tokens_need_no_target(kind, padding, impl):
    head, (x, y, q) = build(MOS), drawn()
    y[:padding] = -100
    sampled, given, kept = torch.where(y < 0, -100, y), x.detach().clone(), slice(padding, None)
    q[:padding], given[:padding] = 0, torch.nan
    teacher = build(SOFTMAX).eval()

    def target(rows):
        labels = 0 * targets.labels(y[rows])
        if kind == "probabilities":
            return labels + targets.from_probabilities(q[rows])
        if kind == "samples":
            return labels + targets.from_samples(sampled[rows].unsqueeze(-1))
        return labels + targets.from_teacher(teacher, given[rows])

    options = {"impl": impl, "ignore_index": -100, "reduction": "mean"}
    found = head.nll(x, target(slice(None)), **options).loss
    want = head.nll(x[kept], target(kept), **options).loss
    parameters = [x, *head.parameters()]
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(*(torch.autograd.grad(out, parameters) for out in (found, want)))


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_rest_of_classes_that_are_ruled_out_has_gradients(case):
    head, (x, _, _) = case.build(classes=CLASSES), drawn()
    x = x[:, :1].expand(-1, head.feature_dim).detach().requires_grad_()
    head.bias.data[5:] = -torch.inf
    classes, found = torch.arange(5).expand(TOKENS, 5), []
    q = drawn(3)[2][:, :5]
    q = q / q.sum(-1, keepdim=True)
    for impl in FEW:
        target = targets.from_top_k(q.log(), classes, torch.zeros(TOKENS).double())
        found.append(torch.autograd.grad(head.nll(x, target, impl=impl).loss.sum(), x)[0])
    assert found[0].isfinite().all() and found[0].abs().max() > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_logarithm_of_narrow_probabilities_is_wide(dtype):
    head, (x, _, q) = build(SOFTMAX), drawn()
    q = q.to(dtype)
    found = head.nll(x, targets.from_probabilities(q, temperature=0.5)).loss
    log_q, log_p = ((2 * t).log_softmax(-1) for t in (q.double().log(), head(x)))
    torch.testing.assert_close(found, (log_q.exp() * (log_q - log_p)).sum(-1) / 4)


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_teachers_small_probabilities_are_kept(case):
    """Let the probabilities of a mixture underflow in float32."""
    teacher = case.build(classes=CLASSES, dtype=torch.float32)
    teacher.weight.data.mul_(300)
    x = torch.randn(TOKENS, teacher.feature_dim, generator=torch.Generator().manual_seed(0))
    found = targets.from_teacher(teacher, x).log_probs(x)
    assert teacher(x).min() < -110
    torch.testing.assert_close(found, teacher(x).detach(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("impl", FEW)
@pytest.mark.parametrize("case", [SOFTMAX, MOS], ids=str)
def test_losses_without_gradients_are_the_same(case, impl):
    head, (x, y, q) = build(case), drawn()
    target = targets.labels(y) + targets.from_probabilities(q)
    options = {"z_loss": 0.1, "accuracy": True, "entropy": True}
    with torch.no_grad():
        found = head.nll(x, target, impl=impl, **options)
    for ours, wanted in zip(found, head.nll(x, target, impl="reference", **options), strict=True):
        torch.testing.assert_close(ours, wanted.detach())


@pytest.mark.cpp
@pytest.mark.parametrize("case", [SOFTMAX, MOS, STRUCTURES[-1]], ids=str)
def test_another_default_device_changes_nothing(case, monkeypatch):
    monkeypatch.setattr(trust, "verdicts", {})
    head = case.with_pointwise("plif").build(classes=CLASSES, dtype=torch.float32).train()
    x = torch.zeros(6, head.feature_dim, requires_grad=True)
    target = torch.zeros(6, dtype=torch.int64)
    with torch.device("meta"):
        for given in (target, targets.labels(target)):
            head.nll(x, given, impl="cpp", reduction="sum").loss.backward()
    assert x.grad.device.type == "cpu"


def test_a_first_loss_under_autocast_checks_no_narrow_matrix():
    head = build_head("softmax", num_classes=30, feature_dim=8, vocabulary="low_rank", rank=2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.nll(torch.randn(6, 8), torch.arange(6), reduction="mean").loss
    loss.backward()


X, Y, Q = drawn()
MISTAKES = {
    "labels: target: expected a tensor, got list": lambda: targets.labels([1]),
    "source: expected a tensor, got list": lambda: targets.from_probabilities([[1.0]]),
    "tokens=features.shape": lambda: targets.from_probabilities(lambda n: n, tokens=5),
    "probabilities: expected a tensor, got ndarray": lambda: targets.from_probabilities(
        lambda n: np.ones((len(n), CLASSES)) / CLASSES, tokens=[TOKENS]
    ),
    "below 0 or NaN": lambda: targets.from_probabilities(Q * torch.nan),
    "rest: expected a tensor, got float": lambda: targets.from_top_k(Q.log(), Q.long(), 0.0),
    "expected one class of each token": lambda: targets.from_top_k(
        Q[:, :0], Q[:, :0].long(), Q[:, 0] * 0 + 1
    ),
    "temperature must be above 0 and finite, got '2'": lambda: targets.from_probabilities(
        Q, temperature="2"
    ),
    "different tensors of labels": lambda: targets.labels(Y) + targets.labels(Y.clone()),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ValueError, match=message):
        build(SOFTMAX).nll(X, MISTAKES[message]())
