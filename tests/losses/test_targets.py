"""Targets against their definitions in plain torch: values, and the gradients of all parameters."""

import math

import pytest
import torch

from highrank_plugins.heads import Mixtape, Softmax
from highrank_plugins.losses import targets
from highrank_plugins.losses.weighted import Target
from tests.heads.cases import CHOSEN, MOS, SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import CLASSES, RUNNABLE, TARGET, TOKENS, inputs, memory_for
from tests.losses.own_functions import calling

UPSTREAM = torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
TEACHER = MOS.build(classes=CLASSES, seed=5)
TEACHER_FEATURES = make_features(TOKENS, seed=9)
LOG_Q = TEACHER(TEACHER_FEATURES).detach()
TOP = TEACHER.top_k(TEACHER_FEATURES, 4)
REST = 1 - TOP[0].exp().sum(-1)
SAMPLES = torch.multinomial(LOG_Q.exp(), 6, replacement=True)


def at(log_probs, temperature):
    return (log_probs / temperature).log_softmax(-1)


def kl(p, q):
    return (p.exp() * (p - q)).sum(-1)


def jensen_shannon(p, q):
    m = ((p.exp() + q.exp()) / 2).log()
    return (kl(p, m) + kl(q, m)) / 2


def divergence(name):
    """Return the definition of a divergence from LOG_Q, by log P and a temperature."""
    of = {"forward": lambda p, q: kl(q, p), "reverse": kl, "jensen_shannon": jensen_shannon}[name]
    return lambda log_p, t=1.0: t**2 * of(at(log_p, t), at(LOG_Q, t))


def top_k(log_p):
    q, classes = TOP[0].exp(), TOP[1]
    rest_p = 1 - log_p.gather(-1, classes).exp().sum(-1)
    return (q * (TOP[0] - log_p.gather(-1, classes))).sum(-1) + REST * (REST / rest_p).log()


def entropy(log_p):
    return -(log_p.exp() * log_p).sum(-1)


def smoothed(log_p):
    share = 0.1 / (CLASSES - 1)
    nll = -log_p.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
    return (0.9 - share) * nll - share * log_p.sum(-1)


def teacher(**options):
    return targets.from_teacher(TEACHER, TEACHER_FEATURES, **options)


def new_kind():
    """Return a kind of target that the package lacks: a loss, and weights of −log P [n, M]."""

    def loss(log_p, rows):
        p, q = log_p.exp(), rows["q"]
        return (p - q).square().sum(-1), 2 * (q - p) * p

    return Target(loss, {"q": LOG_Q.exp()}, LOG_Q.shape[:-1])


DIVERGENCES = {name: divergence(name) for name in ("forward", "reverse", "jensen_shannon")}
forward = DIVERGENCES["forward"]
CASES = {
    "labels": (lambda: targets.labels(TARGET, 0.1), smoothed),
    "top-k": (lambda: targets.from_top_k(*TOP, REST), top_k),
    "samples": (lambda: targets.from_samples(SAMPLES),
                lambda log_p: -log_p.gather(-1, SAMPLES).mean(-1)),
    "entropy": (targets.entropy, entropy),
    "new kind": (new_kind, lambda log_p: (log_p.exp() - LOG_Q.exp()).square().sum(-1)),
    "probabilities": (lambda: targets.from_probabilities(LOG_Q.exp()), forward),
    "sum": (
        lambda: 0.3 * targets.labels(TARGET, 0.1) + teacher() * 0.7 + -0.2 * targets.entropy(),
        lambda log_p: 0.3 * smoothed(log_p) + 0.7 * forward(log_p) - 0.2 * entropy(log_p),
    ),
}  # fmt: skip
for name, definition in DIVERGENCES.items():
    CASES[name] = (lambda n=name: teacher(divergence=n), definition)
    CASES[f"{name}-warm"] = (
        lambda n=name: teacher(divergence=n, temperature=2.5),
        lambda log_p, d=definition: d(log_p, 2.5),
    )
FUNCTIONS = ["identity", "sigsoftmax", "gss", "plif", "multimax", "monotone_mlp"]


def gradients(loss, upstream, parameters):
    return torch.autograd.grad(loss, parameters, upstream, materialize_grads=True)


def assert_exact(head, target, definition, **options):
    """Compare one token's losses, and all gradients, with those of a definition."""
    x = make_features(TOKENS).requires_grad_()
    parameters = [x, *head.parameters()]
    want, got = definition(head(x)), head.nll(x, target, **options).loss
    upstream = UPSTREAM
    if not got.dim():
        want, upstream = want.sum(), UPSTREAM[1]
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    found, wanted = (gradients(loss, upstream, parameters) for loss in (got, want))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(head.nll(x, target, **options).loss, got)


SOME = ("sum", "reverse-warm", "top-k", "new kind")
EXACT = [(impl, function, CASES, "sum") for impl in ("fused", "cpp") for function in FUNCTIONS]
EXACT += [(impl, "gss", SOME, "none") for impl in RUNNABLE]


@pytest.mark.parametrize(("impl", "pointwise", "names", "reduction"), EXACT)
@pytest.mark.parametrize("case", [*STRUCTURES, CHOSEN], ids=str)
def test_every_target_is_exact(case, impl, pointwise, names, reduction):
    head = case.with_pointwise(pointwise).build(classes=CLASSES)
    memory = memory_for(head, 3, impl)
    for name in names:
        target, definition = CASES[name]
        assert_exact(head, target(), definition, impl=impl, reduction=reduction, memory=memory)


def test_a_teacher_computes_few_tokens_ahead(monkeypatch):
    """Blocks of the student straddle those of the teacher."""
    monkeypatch.setattr(targets, "LEAST_TEACHER", 2 * CLASSES * 8)
    monkeypatch.setattr(targets, "chunk_memory", lambda *_: 0)
    for case in STRUCTURES:
        head = case.build(classes=CLASSES)
        for tokens in (1, 3):
            target = targets.from_teacher(head, TEACHER_FEATURES)
            assert target.ahead == 2
            chunks = memory_for(MOS.build(classes=CLASSES), tokens, "fused")
            got = MOS.build(classes=CLASSES).nll(TEACHER_FEATURES, target, memory=chunks).loss
            log_q, log_p = head(TEACHER_FEATURES), MOS.build(classes=CLASSES)(TEACHER_FEATURES)
            torch.testing.assert_close(got, (log_q.exp() * (log_q - log_p)).sum(-1))
            assert not len(target.kept)


@pytest.mark.parametrize("case", [*STRUCTURES, CHOSEN], ids=str)
@pytest.mark.parametrize("impl", RUNNABLE)
def test_labels_have_every_option(case, impl):
    """Labels as a target are the labels of `nll`: ignored tokens, weights and all scores."""
    head, x = inputs(case)
    weight = torch.linspace(0.2, 1.4, TOKENS, dtype=torch.float64)
    options = {"ignore_index": 5, "weight": weight, "accuracy": True, "entropy": True,
               "z_loss": 0.05, "reduction": "mean"}  # fmt: skip
    outcomes = []
    for target, more in ((TARGET, {"label_smoothing": 0.1}), (targets.labels(TARGET, 0.1), {})):
        head.zero_grad()
        out = head.nll(x, target, impl=impl, **options, **more)
        out.loss.backward()
        outcomes.append([*out, *(p.grad for p in head.parameters() if p.grad is not None)])
    torch.testing.assert_close(*outcomes, rtol=1e-9, atol=1e-11)


def test_probabilities_that_underflow_are_exact_in_float32():
    """A mixture divides by probabilities; where one underflows, it computes in logarithms."""
    case = MOS.with_pointwise("gss", learn=True)  # whose gradients a pass sums
    head = case.build(classes=CLASSES, dtype=torch.float32)
    with torch.no_grad():
        head.bias[4] = -120.0
    x = make_features(TOKENS).float().requires_grad_()
    for divergence in DIVERGENCES:
        target = targets.from_teacher(TEACHER, TEACHER_FEATURES, divergence=divergence)
        parameters = [x, *head.parameters()]
        found = gradients(head.nll(x, target, impl="fused").loss.sum(), None, parameters)
        wide, y = case.build(classes=CLASSES), x.detach().double().requires_grad_()
        wide.load_state_dict(head.double().state_dict())
        head.float()
        want = gradients(DIVERGENCES[divergence](wide(y)).sum(), None, [y, *wide.parameters()])
        for one, other in zip(found, want, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_class_of_probability_0_stays_finite():
    q = LOG_Q.exp()
    q[:, 2] = 0
    q /= q.sum(-1, keepdim=True)
    head, x = SOFTMAX.build(classes=CLASSES), make_features(TOKENS)
    with torch.no_grad():
        head.bias[2] = -math.inf
    top = (q.topk(4).values.log(), q.topk(4).indices)
    made = [targets.from_probabilities(q, divergence=name) for name in DIVERGENCES]
    made += [targets.entropy(), targets.from_top_k(*top, 1 - top[0].exp().sum(-1))]
    for target in made:
        for impl in RUNNABLE:
            head.zero_grad()
            loss = head.nll(x, target, reduction="sum", impl=impl).loss
            loss.backward()
            assert loss.isfinite()
            assert head.weight.grad.isfinite().all()


def test_samples_are_unbiased_and_top_k_is_not():
    torch.manual_seed(0)
    drawn = targets.draw(TEACHER, TEACHER_FEATURES, 20_000)
    shares = torch.nn.functional.one_hot(drawn, CLASSES).double().mean(1)
    torch.testing.assert_close(shares, LOG_Q.exp(), rtol=0, atol=0.015)


def test_an_own_layer_teaches_what_it_computes():
    """A fused loss would compute the function of its base."""

    torch.manual_seed(0)
    own = calling("_mean", lambda self, found, *_: 1.5 * found, Mixtape)
    own = own(CLASSES, TEACHER_FEATURES.size(-1), frequent=5, gate_dim=3).double().eval()
    student, x = SOFTMAX.build(classes=CLASSES), make_features(TOKENS)
    found = student.nll(x, targets.from_teacher(own, TEACHER_FEATURES)).loss
    log_q, log_p = own(TEACHER_FEATURES), student(x)
    torch.testing.assert_close(found, (log_q.exp() * (log_q - log_p)).sum(-1))


def test_an_own_layer_learns_from_a_teacher():
    own = calling("chunk_logits", lambda self, found, *_: 2 * found, Softmax, fused=None)
    target, definition = CASES["sum"]
    head = own(CLASSES, TEACHER_FEATURES.size(-1)).double().eval()
    assert_exact(head, target(), definition)


def test_all_classes_have_no_rest():
    log_q, classes = TEACHER.top_k(TEACHER_FEATURES, CLASSES)
    every = targets.from_top_k(log_q, classes, torch.full((TOKENS,), 1e-16).double())
    head, features = SOFTMAX.build(classes=CLASSES), make_features(TOKENS)
    torch.testing.assert_close(head.nll(features, every).loss, head.nll(features, teacher()).loss)


def test_a_teacher_computes_under_autocast():
    head, teacher = (MOS.build(classes=CLASSES, dtype=torch.float32, seed=s) for s in (0, 5))
    x = make_features(TOKENS).float()
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            given = TEACHER_FEATURES.to(torch.bfloat16 if enabled else torch.float32)
            target = targets.from_teacher(teacher, given)
            losses.append(head.nll(x, target, reduction="sum").loss)
    assert losses[0] != losses[1]
    torch.testing.assert_close(*losses, rtol=0.05, atol=0.05)
