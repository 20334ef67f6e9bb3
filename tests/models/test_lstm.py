"""The encoder-decoder LSTM: every head on it, its loss, incremental decoding, stock checkpoints."""

import pytest
import torch
from torch.testing import assert_close

from highrank_plugins.heads import tokens
from tests.models.small import build
from tests.trainings import last, parameters, train

FEW_KNOTS = ["--head-plif-knots", "50"]
TIED = ["--share-decoder-input-output-embed", "--head-bias", "false"]
ALL_TIED = ["--share-all-embeddings", "--head-bias", "false"]
SHAPES = {
    "apart": ("mt_data", []),
    "tied": ("mt_data", TIED),
    "all tied": ("joined_data", ALL_TIED),
}
SMOOTH = ["--label-smoothing", "0.1"]
STOCK = ["--criterion", "label_smoothed_cross_entropy", *SMOOTH]


@pytest.fixture(params=sorted(tokens()))
def built(request, mt_data):
    """Build every token."""
    knots = FEW_KNOTS if "plif" in request.param else []
    return build(mt_data, f"lstm_{request.param}", *SMOOTH, *knots)


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


def test_incremental_decoding_equals_one_pass(built):
    inputs = built.batch()["net_input"]
    model, words = built.model.eval(), inputs["prev_output_tokens"]
    encoded = model.encoder(inputs["src_tokens"], inputs["src_lengths"])
    state: dict = {}
    each = [
        model.decoder(words[:, : step + 1], encoder_out=encoded, incremental_state=state)[0]
        for step in range(words.size(1))
    ]
    assert_close(torch.cat(each, 1), model(**inputs)[0], rtol=1e-4, atol=1e-5)


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


@pytest.fixture(scope="module")
def trained(mt_data, tmp_path_factory):
    """Train stock's `lstm`."""
    folder = tmp_path_factory.mktemp("stock")
    train(mt_data, folder, "lstm", 6, "--criterion", "cross_entropy")
    return last(folder)


@pytest.mark.parametrize("token", ["softmax", "mixtape"])
def test_a_head_can_start_from_a_stock_checkpoint(token, mt_data, trained, tmp_path):
    start = ["--lr", "0", "--finetune-from-model", trained]
    done = train(mt_data, tmp_path, f"lstm_{token}", 1, *start)
    old, new = parameters(trained), parameters(last(tmp_path))
    ours = {name.replace(".fc_out.", ".output_projection."): value for name, value in old.items()}
    assert all(torch.equal(new[name], value) for name, value in ours.items())
    added = sorted(new.keys() - ours.keys())
    assert all(name in done.output for name in added)
    assert bool(added) == (token != "softmax")
