"""Numbers of parameters, output layer included, are those of the published models."""

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.trunks import AWDLSTM

PTB, WT2 = 10_000, 33_278
SIZES = {
    ("softmax", PTB): ((400, 1150, 400), 24_221_600),
    ("softmax", WT2): ((400, 1150, 400), 33_556_078),
    ("mos", PTB): ((280, 960, 620), 21_500_620),
    ("mos", WT2): ((300, 1150, 650), 34_909_528),
}


@pytest.mark.parametrize(("head", "words"), SIZES)
def test_parameter_counts_are_the_published_ones(head, words):
    (embed_dim, hidden_size, last), count = SIZES[head, words]
    with torch.device("meta"):
        trunk = AWDLSTM(words, embed_dim, hidden_size, layers=3, last_hidden_size=last)
        weight = trunk.embed.weight
        output = build_head(
            head, num_classes=words, feature_dim=last, embed_dim=embed_dim, weight=weight
        )
    both = torch.nn.ModuleList([trunk, output])
    assert output.weight is weight
    assert sum(p.numel() for p in both.parameters()) == count
