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


@pytest.mark.parametrize(("stock", "ours", "data", "words"), PAIRS, ids=str)
def test_a_model_starts_with_stocks_parameters(stock, ours, data, words, request):
    data = request.getfixturevalue(data)
    want = build(data, stock, *words).model.state_dict()
    got = build(data, ours, *words).model.state_dict()
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


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
