"""Ranks that theory gives: what a layer's log-probabilities can span."""

import pytest
import torch

from highrank_plugins.analysis.spectrum import spectrum
from highrank_plugins.heads import build_head

CONTEXTS, CLASSES, FEATURES, DIM = 150, 60, 8, 5


def rank(name, bias=True, **options):
    torch.manual_seed(1)
    size = DIM if name == "softmax" else FEATURES
    head = build_head(name, num_classes=CLASSES, feature_dim=size, embed_dim=DIM, bias=bias,
                      **options).double().eval()  # fmt: skip
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        log_probs = head(2 * torch.randn(CONTEXTS, size, dtype=torch.float64))
    return spectrum(log_probs.split(64)).press_rank()


def test_one_softmax_of_linear_logits_has_rank_d_plus_2():
    assert rank("softmax") == rank("moc", components=3) == DIM + 2
    assert rank("softmax", bias=False) == rank("moc", bias=False, components=3) == DIM + 1


def test_a_mixture_of_softmaxes_has_full_rank():
    assert rank("mos", components=3) == CLASSES
    assert rank("mos", components=1) == DIM + 2


@pytest.mark.parametrize("pointwise", ["sigsoftmax", "gss", "plif"])
def test_pointwise_functions_raise_the_rank(pointwise):
    assert rank("softmax", pointwise=pointwise) == CLASSES


def test_mixtape_has_a_bounded_rank_in_its_rare_columns_only():
    assert rank("mixtape", frequent=0) == DIM + 2
    assert rank("mixtape", frequent=20) == 20 + DIM + 2
    assert rank("mixtape", frequent=CLASSES) == CLASSES
