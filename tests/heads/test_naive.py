"""The naive code computes the same loss, so the comparison is fair."""

import pytest
import torch

from highrank_plugins.heads.naive import naive_nll
from tests.heads.cases import MIXTAPE, PRODUCT, make_features

TARGET = torch.tensor([4, 1, 4, 0, 6])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", [*PRODUCT, MIXTAPE.with_options(components=8)], ids=str)
def test_naive_code_computes_the_same_loss(case, smoothing):
    head, features = case.build(), make_features(5)
    want = head.nll(features, TARGET, label_smoothing=smoothing, reduction="sum").loss
    got = naive_nll(head, features, TARGET, smoothing)
    # MoS as its authors wrote it adds 1e-8 to each probability
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
