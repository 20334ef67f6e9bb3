"""The encoder-decoder LSTM with a softmax is stock's: parameters, loss, gradients, states."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.small import build

TIED = ["--share-decoder-input-output-embed", "--head-bias", "false"]
ALL_TIED = ["--share-all-embeddings", "--head-bias", "false"]
SHAPES = {
    "apart": ("mt_data", []),
    "tied": ("mt_data", TIED),
    "all tied": ("joined_data", ALL_TIED),
}
SMOOTH = ["--label-smoothing", "0.1"]
STOCK = ["--criterion", "label_smoothed_cross_entropy", *SMOOTH]


@pytest.fixture(params=SHAPES)
def pair(request):
    """Return stock's `lstm` and the softmax head on it, with the same seed."""
    data, words = SHAPES[request.param]
    data = request.getfixturevalue(data)
    stock = build(data, "lstm", *STOCK, *[w for w in words if w.startswith("--share")])
    return stock, build(data, "lstm_softmax", *SMOOTH, *words)


def stock_name(name: str, stock) -> str:
    """Return stock's name of a parameter of ours."""
    tied = stock.model.decoder.share_input_output_embed
    layer = "decoder.embed_tokens." if tied else "decoder.fc_out."
    return name.replace("decoder.output_projection.", layer)


def test_a_model_starts_with_stocks_parameters(pair):
    stock, ours = pair
    want = stock.model.state_dict()
    assert len(dict(ours.model.named_parameters())) == len(dict(stock.model.named_parameters()))
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, want[stock_name(name, stock)]), name


@pytest.mark.parametrize("loss", [SMOOTH, STOCK], ids=["ours", "stock's"])
def test_loss_and_gradients_equal_stocks(loss, pair):
    stock, ours = pair
    if loss is STOCK:
        ours.criterion = stock.criterion
    losses = []
    for each in pair:
        torch.manual_seed(5)  # of the dropout
        losses.append(each.criterion(each.model.train(), each.batch())[0])
        losses[-1].backward()
    assert_close(losses[1], losses[0])
    want = {name: p.grad for name, p in stock.model.named_parameters()}
    for name, parameter in ours.model.named_parameters():
        assert_close(
            parameter.grad, want[stock_name(name, stock)], msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_stock_state_can_be_loaded(pair):
    stock, ours = pair
    for parameter in stock.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ours.model.load_state_dict(stock.model.state_dict(), strict=True)
    inputs = ours.batch()["net_input"]
    want, _ = stock.model.eval()(**inputs)
    assert_close(ours.model.eval()(**inputs)[0], want.log_softmax(-1))
    ours.model.load_state_dict(ours.model.state_dict(), strict=True)  # and ours stays as it is
    assert_close(ours.model(**inputs)[0], want.log_softmax(-1))


def test_an_untied_stock_state_does_not_become_tied(mt_data):
    stock, ours = build(mt_data, "lstm", *STOCK), build(mt_data, "lstm_softmax", *TIED)
    with pytest.raises(RuntimeError, match=r"decoder\.fc_out\.weight"):
        ours.model.load_state_dict(stock.model.state_dict(), strict=True)
