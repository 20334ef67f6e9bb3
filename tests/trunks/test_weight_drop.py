"""DropConnect: the recurrent matrix is masked in training and nowhere else."""

import pytest
import torch

from highrank_plugins.heads.random_state import dropout_mask
from highrank_plugins.trunks.awd_lstm import WeightDropLSTM, embed_words
from tests.trunks import plain

P, SEED = 0.5, 9


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return WeightDropLSTM(4, 6).double()


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    state = (torch.randn(1, 3, 6).double(), torch.randn(1, 3, 6).double())
    return torch.randn(5, 3, 4).double(), state


def dropped(layer):
    """Return the recurrent matrix as the next forward pass after `SEED` will see it."""
    torch.manual_seed(SEED)
    return layer.weight_hh_l0 * dropout_mask(layer.weight_hh_l0.shape, P, layer.weight_hh_l0)


def run(layer, x, state):
    torch.manual_seed(SEED)
    return layer(x, state, P)


def test_training_uses_the_dropped_matrix_at_every_step(layer, inputs):
    x, (h, c) = inputs
    mask = dropped(layer)
    assert 0 < (mask == 0).sum() < mask.numel()
    weights = plain.weights_of(layer, recurrent=mask)
    want = plain.lstm(x.numpy(), h[0].numpy(), c[0].numpy(), weights)
    out, (last_h, last_c) = run(layer, *inputs)
    for got, expected in zip((out, last_h[0], last_c[0]), want, strict=True):
        torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_evaluation_equals_torchs_lstm_bit_for_bit(layer, inputs):
    stock = torch.nn.LSTM(4, 6).double()
    stock.load_state_dict(layer.state_dict())
    want, want_state = stock(*inputs)
    got, state = layer.eval()(*inputs, P)
    assert torch.equal(got, want)
    assert all(map(torch.equal, state, want_state))


def test_a_word_is_dropped_everywhere_or_nowhere():
    weight = torch.randn(200, 4, requires_grad=True)
    tokens = torch.randint(200, (30, 20))
    torch.manual_seed(0)
    rows = embed_words(weight, tokens, 0.5)
    torch.manual_seed(0)
    masked = weight * dropout_mask((200, 1), 0.5, weight)
    assert torch.equal(rows, masked[tokens])
    rows.sum().backward()
    is_dropped = (masked == 0).all(1)
    assert 60 < is_dropped.sum() < 140
    assert (weight.grad[is_dropped] == 0).all()
    assert torch.equal(embed_words(weight, tokens, 0.0), weight[tokens])
