"""The softmax head is fairseq's own output layer: same parameters before and after training."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.small import build
from tests.trainings import last, parameters, train

SMOOTH = ["--label-smoothing", "0.1"]
STOCK = ["--criterion", "label_smoothed_cross_entropy", *SMOOTH]
# The gradient of a key bias is 0 but for rounding, which Adam would blow up to the learning rate.
STEADY = ["--adam-eps", "1e-5"]
PAIRS = [
    ("transformer_tiny", "transformer_softmax_tiny", "joined_data", ["--share-all-embeddings"]),
    ("transformer_tiny", "transformer_softmax_tiny", "mt_data", []),
    ("transformer_lm", "transformer_lm_softmax", "lm_data", []),
]


TIED, NO_BIAS = ["--share-decoder-input-output-embed"], ["--head-bias", "false"]
LSTMS = [
    ("lstm", "lstm_softmax", "mt_data", []),
    ("lstm", "lstm_softmax", "mt_data", [*TIED, *NO_BIAS]),
    ("lstm", "lstm_softmax", "joined_data", ["--share-all-embeddings", *NO_BIAS]),
]
of_lstms = pytest.mark.parametrize("pair", LSTMS, ids=str, indirect=True)


@pytest.fixture
def pair(request):
    """Return a stock model and the softmax head on it, with the same seed."""
    stock, ours, data, words = request.param
    data = request.getfixturevalue(data)
    stock = build(data, stock, *STOCK, *[w for w in words if w.startswith("--share")])
    return stock, build(data, ours, *SMOOTH, *words)


def stock_name(name: str, stock) -> str:
    """Return stock's name of a parameter of ours."""
    if not hasattr(stock.model.decoder, "fc_out"):
        return name.replace("decoder.output_projection.", "decoder.embed_tokens.")
    return name.replace("decoder.output_projection.", "decoder.fc_out.")


@pytest.mark.parametrize("pair", [*PAIRS, *LSTMS], ids=str, indirect=True)
def test_a_model_starts_with_stocks_parameters(pair):
    stock, ours = pair
    want = stock.model.state_dict()
    assert len(dict(ours.model.named_parameters())) == len(dict(stock.model.named_parameters()))
    for name, value in ours.model.state_dict().items():
        theirs = name if name in want else stock_name(name, stock)
        assert torch.equal(value, want[theirs]), name


@pytest.mark.parametrize(("stock", "ours", "data", "words"), PAIRS, ids=str)
def test_ten_updates_equal_stocks(stock, ours, data, words, request, tmp_path):
    data = request.getfixturevalue(data)
    train(data, tmp_path / "stock", stock, 10, *STOCK, *STEADY, *words)
    train(data, tmp_path / "ours", ours, 10, *SMOOTH, *STEADY, *words)
    train(data, tmp_path / "mixed", ours, 10, *STOCK, *STEADY, *words)
    want = parameters(last(tmp_path / "stock"))
    for name in ("ours", "mixed"):
        got = parameters(last(tmp_path / name))
        assert got.keys() == want.keys()
        for key in want:
            assert_close(got[key], want[key], rtol=0, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


def half_precision_gradients(built, scale):
    """Return gradients of a half-precision model as fairseq computes them, unscaled."""
    model = built.model.half().eval()
    loss, _, _ = built.criterion(model, built.batch(sentences=20))
    (loss * scale).backward()
    return {name: p.grad.double() / scale for name, p in model.named_parameters()}


def error(gradients, want):
    squares = sum((gradients[name] - want[name]).square().sum() for name in want)
    return (squares / sum(w.square().sum() for w in want.values())).sqrt().item()


def test_half_precision_is_as_accurate_as_stocks(mt_data):
    want = build(mt_data, "transformer_tiny", *STOCK)
    loss, _, _ = want.criterion(want.model.eval(), want.batch(sentences=20))
    loss.backward()
    exact = {name: p.grad.double() for name, p in want.model.named_parameters()}

    stock = half_precision_gradients(build(mt_data, "transformer_tiny", *STOCK), 128)
    ours = half_precision_gradients(build(mt_data, "transformer_softmax_tiny", *SMOOTH), 128)
    assert error(ours, exact) < 1.5 * error(stock, exact)


# -- the LSTM, whose output layer has another name -----------------------------------------------


@of_lstms
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


@of_lstms
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
    stock, ours = build(mt_data, "lstm", *STOCK), build(mt_data, "lstm_softmax", *TIED, *NO_BIAS)
    with pytest.raises(RuntimeError, match=r"decoder\.fc_out\.weight"):
        ours.model.load_state_dict(stock.model.state_dict(), strict=True)
