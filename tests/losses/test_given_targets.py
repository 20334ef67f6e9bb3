"""What users give as targets: padding, ruled-out classes, half precision, devices, mistakes."""

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.losses import targets, trust
from tests.heads.cases import MOS, SOFTMAX, STRUCTURES
from tests.losses.implementations import RUNNABLE

CLASSES, TOKENS, SIZE = 9, 40, 4
FEW = [impl for impl in RUNNABLE if impl != "triton"]


def drawn(seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, SIZE, generator=random, dtype=torch.float64)
    q = torch.randn(TOKENS, CLASSES, generator=random, dtype=torch.float64).softmax(-1)
    return x.requires_grad_(), torch.randint(CLASSES, (TOKENS,), generator=random), q


def build(case):
    torch.manual_seed(1)
    options = {"components": 3} if case.head == "mos" else {}
    return build_head(case.head, num_classes=CLASSES, feature_dim=SIZE, **options).double()


KINDS = {
    "labels": lambda y, q, x: targets.entropy(),
    "probabilities": lambda y, q, x: targets.from_probabilities(q),
    "samples": lambda y, q, x: targets.from_samples(y.unsqueeze(-1)),
    "forward": lambda y, q, x: targets.from_teacher(build(SOFTMAX).eval(), x),
    "reverse": lambda y, q, x: targets.from_teacher(build(SOFTMAX).eval(), x, divergence="reverse"),
}


@pytest.mark.parametrize("impl", FEW)
@pytest.mark.parametrize("padding", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_ignored_tokens_need_no_target(kind, padding, impl):
    head, (x, y, q) = build(MOS), drawn()
    given, kept = x.detach().clone(), slice(padding, None)
    y[:padding], q[:padding], given[:padding] = -100, 0, torch.nan
    options = {"impl": impl, "ignore_index": -100, "reduction": "mean"}
    found, want = (
        head.nll(x[rows], targets.labels(y[rows]) + KINDS[kind](y[rows], q[rows], given[rows]),
                 **options).loss
        for rows in (slice(None), kept)
    )  # fmt: skip
    parameters = [x, *head.parameters()]
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(*(torch.autograd.grad(out, parameters) for out in (found, want)))


@pytest.mark.parametrize("impl", [impl for impl in FEW if impl != "reference"])
def test_labels_may_be_refilled_before_backward_and_other_tensors_say_so(impl):
    """Reduction "none" reads a target again in the backward pass."""
    head, (x, y, q) = build(MOS), drawn()
    gradients = []
    for refilled in (False, True):
        loss = head.nll(x, targets.labels(y), impl=impl).loss
        if refilled:
            y.fill_(1)
        gradients.append(torch.autograd.grad(loss.sum(), head.weight)[0])
    assert torch.equal(*gradients)
    with torch.inference_mode():
        uncounted = q.clone()
    head.nll(x, targets.from_probabilities(uncounted), impl=impl).loss.sum().backward()
    buffer = torch.stack((q, q))  # of a teacher, which is filled again meanwhile
    losses = [head.nll(x, targets.from_probabilities(p), impl=impl).loss for p in (q, buffer[0])]
    buffer.zero_()
    assert torch.equal(*(torch.autograd.grad(loss.sum(), x)[0] for loss in losses))
    teacher = build(MOS).eval()
    loss = head.nll(x, 2 * targets.from_teacher(teacher, x.detach()), impl=impl).loss.sum()
    torch.nn.init.ones_(teacher.weight)
    with pytest.raises(RuntimeError, match="target was changed in place before backward"):
        loss.backward()
    for kind, given in {"probabilities": q, "samples": y, "forward": x.detach()}.items():
        target = 0.5 * targets.labels(y) + 0.5 * KINDS[kind](y, q, x)
        loss = head.nll(x.detach().clone(), target, impl=impl).loss.sum()
        given.copy_(given.clone())
        with pytest.raises(RuntimeError, match="target was changed in place before backward"):
            loss.backward()


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


def test_a_teachers_small_probabilities_are_kept(case):
    """Let the probabilities of a mixture underflow in float32."""
    teacher = case.build(classes=CLASSES, dtype=torch.float32)
    teacher.weight.data.mul_(300)
    x = torch.randn(TOKENS, teacher.feature_dim, generator=torch.Generator().manual_seed(0))
    found = targets.from_teacher(teacher, x).log_probs(x)
    assert teacher(x).min() < -110
    torch.testing.assert_close(found, teacher(x).detach(), rtol=1e-4, atol=1e-3)


X, Y, Q = drawn()
LOG_Q, TOP = Q.log(), Q.topk(4).indices
TOP_LOG_Q = LOG_Q.gather(-1, TOP)
REST = 1 - TOP_LOG_Q.exp().sum(-1)


def of(q=Q, **options):
    return targets.from_probabilities(q, **options)


def teacher(training=False, classes=CLASSES, tokens=TOKENS, **options):
    head = MOS.build(classes=classes).train(training)
    return targets.from_teacher(head, X.detach()[:tokens], **options)


def top_k(log_q=TOP_LOG_Q, classes=TOP, rest=REST):
    return targets.from_top_k(log_q, classes, rest)


MISTAKES = {
    "labels: target: expected a tensor, got list": lambda: targets.labels([1]),
    "label_smoothing must lie in": lambda: targets.labels(Y, 1.0),
    "different tensors of labels": lambda: targets.labels(Y) + targets.labels(Y.clone()),
    "different tokens do not add up": lambda: teacher() + targets.labels(Y[:3]),
    "a finite factor, got nan": lambda: float("nan") * targets.entropy(),
    "below 0 or NaN": lambda: of(Q * torch.nan),
    "a probability is below 0": lambda: of(
        Q + 2 * torch.eye(CLASSES)[0] - 2 * torch.eye(CLASSES)[1]
    ),
    "from_probabilities: .* do not sum to 1": lambda: of(2 * Q),
    "temperature must be above 0 and finite, got 0.0": lambda: teacher(temperature=0.0),
    "divergence: unknown 'forwards'": lambda: teacher(divergence="forwards"),
    "both must have the same dictionary": lambda: teacher(classes=12),
    "call teacher.eval": lambda: teacher(training=True),
    r"made for tokens \(5,\)": lambda: teacher(tokens=5),
    "expected a head, got NoneType": lambda: targets.from_teacher(None, X),
    r"from_top_k: rest: expected shape": lambda: top_k(rest=REST[:, None]),
    r"from_top_k: .* do not sum to 1": lambda: top_k(rest=REST + 0.1),
    "from_top_k: the prob.* do not sum to 1": lambda: top_k(  # logits
        TOP_LOG_Q + 5, rest=1 - (TOP_LOG_Q + 5).exp().sum(-1)
    ),
    "a token has a class twice": lambda: top_k(classes=TOP * 0),
    "a class is out of range": lambda: targets.from_samples(TOP + 7),
    "from_samples: .* do not sum to 1": lambda: targets.from_samples(TOP, TOP * 0.0),
}


OPTIONS = {  # that need labels
    "ignore_index: this target has no labels": {"ignore_index": 5},
    "accuracy: this target has no labels": {"accuracy": True},
    "label_smoothing: give it to targets": {"label_smoothing": 0.1},
}


@pytest.mark.parametrize("message", [*MISTAKES, *OPTIONS])
def test_a_mistake_is_one_line(message):
    with pytest.raises(ValueError, match=message) as caught:
        build(SOFTMAX).nll(X, MISTAKES.get(message, of)(), **OPTIONS.get(message, {}))
    assert "\n" not in str(caught.value)


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
