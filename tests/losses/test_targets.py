"""Targets against their definitions in plain torch: values, and the gradients of all parameters."""

import math

import pytest
import torch

from highrank_plugins.losses import targets
from tests.heads.cases import CHOSEN, MIXTAPE, MOS, SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import RUNNABLE, memory_for

CLASSES, TOKENS = 13, 7
LABEL = torch.tensor([3, 12, 5, 3, 0, 5, 3])
UPSTREAM = torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
TEACHER = MOS.build(classes=CLASSES, seed=5)
TEACHER_FEATURES = make_features(TOKENS, seed=9)
LOG_Q = TEACHER(TEACHER_FEATURES).detach()
TOP = TEACHER.top_k(TEACHER_FEATURES, 4)
REST = 1 - TOP[0].exp().sum(-1)
SAMPLES = torch.multinomial(LOG_Q.exp(), 6, replacement=True)
IMPLS = [name for name in RUNNABLE if name != "triton"]


def at(log_probs, temperature):
    return (log_probs / temperature).log_softmax(-1)


def forward(log_p, temperature=1.0):
    p, q = at(log_p, temperature), at(LOG_Q, temperature)
    return temperature**2 * (q.exp() * (q - p)).sum(-1)


def reverse(log_p, temperature=1.0):
    p, q = at(log_p, temperature), at(LOG_Q, temperature)
    return temperature**2 * (p.exp() * (p - q)).sum(-1)


def jensen_shannon(log_p, temperature=1.0):
    p, q = at(log_p, temperature), at(LOG_Q, temperature)
    m = ((p.exp() + q.exp()) / 2).log()
    both = (p.exp() * (p - m)).sum(-1) + (q.exp() * (q - m)).sum(-1)
    return temperature**2 * both / 2


def top_k(log_p):
    q, classes = TOP[0].exp(), TOP[1]
    rest_p = 1 - log_p.gather(-1, classes).exp().sum(-1)
    return (q * (TOP[0] - log_p.gather(-1, classes))).sum(-1) + REST * (REST / rest_p).log()


def entropy(log_p):
    return -(log_p.exp() * log_p).sum(-1)


def smoothed(log_p):
    share = 0.1 / (CLASSES - 1)
    nll = -log_p.gather(-1, LABEL.unsqueeze(-1)).squeeze(-1)
    return (0.9 - share) * nll - share * log_p.sum(-1)


def teacher(**options):
    return targets.from_teacher(TEACHER, TEACHER_FEATURES, **options)


def function(**options):
    probabilities = LOG_Q.exp()
    return targets.from_probabilities(lambda n: probabilities[n], tokens=(TOKENS,), **options)


DIVERGENCES = {"forward": forward, "reverse": reverse, "jensen_shannon": jensen_shannon}
CASES = {
    "labels": (lambda: targets.labels(LABEL, 0.1), smoothed),
    "top-k": (lambda: targets.from_top_k(*TOP, REST), top_k),
    "samples": (
        lambda: targets.from_samples(SAMPLES),
        lambda log_p: -log_p.gather(-1, SAMPLES).mean(-1),
    ),
    "entropy": (targets.entropy, entropy),
    "function": (function, forward),
    "probabilities": (lambda: targets.from_probabilities(LOG_Q.exp()), forward),
    "sum": (
        lambda: 0.3 * targets.labels(LABEL, 0.1) + teacher() * 0.7 + -0.2 * targets.entropy(),
        lambda log_p: 0.3 * smoothed(log_p) + 0.7 * forward(log_p) - 0.2 * entropy(log_p),
    ),
}
for name, definition in DIVERGENCES.items():
    CASES[name] = (lambda n=name: teacher(divergence=n), definition)
    CASES[f"{name}-warm"] = (
        lambda n=name: teacher(divergence=n, temperature=2.5),
        lambda log_p, d=definition: d(log_p, 2.5),
    )
FUNCTIONS = ["identity", "sigsoftmax", "gss", "plif", "multimax", "monotone_mlp"]


def assert_exact(head, target, definition, impl, reduction="none", **options):
    x = make_features(TOKENS).requires_grad_()
    parameters = [x, *head.parameters()]
    want = definition(head(x))
    wanted = torch.autograd.grad(want @ UPSTREAM if reduction == "none" else want.sum(), parameters,
                                 allow_unused=True)  # fmt: skip
    got = head.nll(x, target, impl=impl, reduction=reduction, **options).loss
    found = torch.autograd.grad(got @ UPSTREAM if reduction == "none" else got, parameters,
                                allow_unused=True)  # fmt: skip
    torch.testing.assert_close(
        got, want if reduction == "none" else want.sum(), rtol=1e-9, atol=1e-11
    )
    for one, other in zip(found, wanted, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("target", CASES)
@pytest.mark.parametrize("pointwise", FUNCTIONS)
@pytest.mark.parametrize("case", [*STRUCTURES, CHOSEN], ids=str)
def test_targets_are_exact(case, pointwise, target):
    head = case.with_pointwise(pointwise).build(classes=CLASSES)
    target, definition = CASES[target][0](), CASES[target][1]
    assert_exact(head, target, definition, "fused", "sum", memory=memory_for(head, 3, "fused"))
