"""Wrong options and tensors: a ValueError that names the thing, its value and the way out."""

import math
import warnings

import numpy
import pytest
import torch
from torch import nn

import highrank_plugins
from highrank_plugins.heads import build_head, build_pointwise, head_options

SIZES = {"num_classes": 10, "feature_dim": 4}

HEADS = [
    # name, options, what the message says
    ("mixtpae", {}, ["mixtpae", "did you mean 'mixtape'", "mos_sigsoftmax"]),
    ("mixtape", {"freqent": 3}, ["freqent", "did you mean 'frequent'", "gate_dim"]),
    ("softmax", {"components": 3}, ["components", "softmax"]),
    ("softmax", {"pointwise": "plfi"}, ["plfi", "did you mean 'plif'", "sigsoftmax"]),
    ("mixtape", {"gates": "sparse"}, ["gates must be tree or softmax", "'sparse'"]),
    ("mixtape", {"gate_biases": "all"}, ["gate_biases", "'all'", "paper or full or none"]),
    ("mixtape", {"frequent": 11}, ["frequent", "at most 10", "11"]),
    *(("mixtape", {"frequent_classes": ids}, ["frequent_classes: expected different ids below 10"])
      for ids in ([3, 3], [10])),
    ("mixtape", {"frequent_classes": [1.5]}, ["frequent_classes: expected an integer, got 1.5"]),
    ("mixtape", {"frequent_classes": [1], "frequent": 2}, ["frequent is 2", "has 1 ids"]),
    *(("mixtape", {"class_counts": counts}, ["class_counts: expected 10 numbers, and no NaN"])
      for counts in ([1, 2], [math.nan] * 10)),
    ("mixtape", {"class_counts": [1] * 10, "frequent_classes": [1]}, ["give one of the two"]),
    ("gss", {"pointwise": "plif"}, ["pointwise", "'gss' has gss", "choose 'softmax'"]),
    ("softmax", {"vocab_size": 5}, ["did you mean 'num_classes'", "feature_dim", "weight"]),
    ("mos", {"cap": 15.0}, ["no option 'cap'; known"]),
    ("mos", {"pointwise": "gss", "knots": 3}, ["'knots'", "context_scale", "k, learn"]),
    ("mos", {"pointwise": nn.Tanh()}, ["pointwise", "a name or an instance"]),
    *(("mos", {"weight": weight}, ["weight: expected a torch.nn.Parameter", "(10, 4)", got])
      for weight, got in ((nn.Embedding(10, 4), "got Embedding"),
                          (torch.zeros(10, 4), "got Tensor (10, 4)"),
                          (nn.Parameter(torch.zeros(9, 4)), "got Parameter (9, 4)"))),
    *(("mixtape", {name: value}, [name, str(value)]) for name, value in (
        ("frequent", -1), ("frequent", 0.5), ("frequent", True), ("components", "4"),
        ("locked_dropout", "false"), ("bias", "no"), ("gate_dim", 0),
        ("gate_noise", -0.1), ("gate_weight_norm", -1), ("gate_dropout", 1), ("dropout", 1.5),
        ("context_scale", 0), ("context_scale", math.inf), ("num_classes", 0),
        ("feature_dim", 0), ("embed_dim", -3),
    )),
]  # fmt: skip

POINTWISE = [
    ("sigsoftmx", {}, ["sigsoftmx", "did you mean 'sigsoftmax'", "plif"]),
    ("plif", {"knot": 3}, ["knot", "did you mean 'knots'"]),
    *((name, {option: value}, [f"{name}: {option}", f"{value}"[:2]]) for name, option, value in (
        ("gss", "learn", "false"), ("gss", "k", 0), ("gss", "c", math.nan),
        ("plif", "freeze", "false"), ("plif", "bound", 0), ("plif", "knots", 0),
        ("plif", "init_sd", math.nan), ("monotone_mlp", "units", 0), ("monotone_mlp", "bound", -1),
        ("softcap", "cap", 0), ("softcap", "cap", 1e4), ("softcap", "cap", "15"),
        ("sigmoid_cap", "height", -1), ("sigmoid_cap", "scale", 0),
        ("sigmoid_cap", "shift", math.nan), ("multimax", "init_sd", -1),
    )),
]  # fmt: skip


CALLS = [
    # call of a head h with features F and targets T, what the message says
    (
        lambda h, F, T: h.nll(F.numpy(), T),
        ["features: expected a tensor", "got ndarray of float32"],
    ),
    (lambda h, F, T: h.nll(F.mT, T), ["features", "4", "(4, 3)"]),
    (lambda h, F, T: h.logits(F), ["mos has no logits", "head(features)"]),
    (lambda h, F, T: h.nll(F, T, smoothing=0.1), ["'smoothing'; did you mean 'label_smoothing'"]),
    (lambda h, F, T: h(F, reduction="sum"), ["log P; reduction: only with target="]),
    (lambda h, F, T: build_head("mos", feature_dim=4), ["required", "'num_classes'"]),
    (lambda h, F, T: build_pointwise(build_pointwise("gss"), k=3.0), ["k", "built"]),
    (lambda h, F, T: head_options("mox"), ["mox", "did you mean 'mo"]),
]
REFUSED = [
    *((lambda *_, n=n, o=o: build_head(n, **{**SIZES, **o}), words) for n, o, words in HEADS),
    *((lambda *_, n=n, o=o: build_pointwise(n, **o), words) for n, o, words in POINTWISE),
    *CALLS,
]


@pytest.mark.parametrize("call, words", REFUSED, ids=lambda x: "" if callable(x) else "+".join(x))
def test_wrong_options_and_tensors_are_refused_with_the_remedy(call, words):
    head = build_head("mos", **SIZES, components=2)
    with pytest.raises((ValueError, TypeError)) as error:
        call(head, torch.randn(3, 4), torch.arange(3))
    for word in words:
        assert word in str(error.value)


def test_layers_of_architectures_and_options_of_functions_build():
    capped = build_head("mos", **SIZES, components=2, pointwise="softcap", cap=15.0)
    assert (capped.components, capped.pointwise.cap) == (2, 15.0)
    assert build_head("mos", **SIZES, locked_dropout=numpy.True_).locked_dropout is True
    both = build_head("mos_sigsoftmax", **SIZES, components=2)
    assert (type(both), type(both.pointwise).__name__) == (type(capped), "SigSoftmax")
    assert build_head("gss", **SIZES, k=2.0).pointwise.kernel_function.numbers[1] == 2.0
    assert highrank_plugins.build_head is build_head
    with pytest.warns(UserWarning, match=r"classes 0 to 4 have gates.*most\n?.* frequent"):
        build_head("mixtape", **SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_head("mixtape", **SIZES, frequent=3)
        build_head("mixtape", **SIZES, frequent_ratio=0.0)
        build_head("mixtape", **SIZES, class_counts=range(10))


def test_a_loss_says_which_of_its_tensors_has_an_attribute():
    head, features = build_head("softmax", **SIZES), torch.randn(3, 4)
    out = head.nll(features, torch.arange(3))
    for name in ("backward", "requires_grad"):
        with pytest.raises(AttributeError, match=rf"use \.loss\.{name}, and reduction="):
            getattr(out, name)
