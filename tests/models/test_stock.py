"""The softmax head is fairseq's own output layer; a stock softmax starts any head."""

from contextlib import nullcontext

import pytest
import torch
from omegaconf import OmegaConf
from torch.testing import assert_close

from highrank_plugins.heads import build_head, vocabulary_names
from highrank_plugins.models.warm_start import STORED, fill_new_parameters, require_one_matrix
from tests.fairseq_cli import attempt
from tests.models.small import build
from tests.trainings import last, parameters, same, train

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
    ("mt_data", []),
    ("mt_data", [*TIED, *NO_BIAS]),
    ("joined_data", ["--share-all-embeddings", *NO_BIAS]),
]


def stock_name(name: str, stock) -> str:
    """Return stock's name of a parameter of ours."""
    if not hasattr(stock.model.decoder, "fc_out"):
        return name.replace("decoder.output_projection.", "decoder.embed_tokens.")
    return name.replace("decoder.output_projection.", "decoder.fc_out.")


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


def gradients_at(built, scale=None):
    """Return gradients; with a scale those of half precision as fairseq computes them."""
    model = (built.model if scale is None else built.model.half()).eval()
    loss, _, _ = built.criterion(model, built.batch(sentences=20))
    (loss * (scale or 1)).backward()
    return {name: p.grad.double() / (scale or 1) for name, p in model.named_parameters()}


def error(gradients, want):
    squares = sum((gradients[name] - want[name]).square().sum() for name in want)
    return (squares / sum(w.square().sum() for w in want.values())).sqrt().item()


def test_half_precision_is_as_accurate_as_stocks(mt_data):
    exact = gradients_at(build(mt_data, "transformer_tiny", *STOCK))
    stock = gradients_at(build(mt_data, "transformer_tiny", *STOCK), 128)
    ours = gradients_at(build(mt_data, "transformer_softmax_tiny", *SMOOTH), 128)
    assert error(ours, exact) < 1.5 * error(stock, exact)


# -- the LSTM, whose output layer has another name -----------------------------------------------


@pytest.mark.parametrize("loss", [SMOOTH, STOCK], ids=["ours", "stock's"])
@pytest.mark.parametrize(("data", "words"), LSTMS, ids=str)
def test_loss_and_gradients_equal_stocks(data, words, loss, request):
    data = request.getfixturevalue(data)
    stock = build(data, "lstm", *STOCK, *[w for w in words if w.startswith("--share")])
    ours = build(data, "lstm_softmax", *SMOOTH, *words)
    assert len(dict(ours.model.named_parameters())) == len(dict(stock.model.named_parameters()))
    if loss is STOCK:
        ours.criterion = stock.criterion
    losses = []
    for each in (stock, ours):
        torch.manual_seed(5)  # of the dropout
        losses.append(each.criterion(each.model.train(), each.batch())[0])
        losses[-1].backward()
    assert_close(losses[1], losses[0])
    want = {name: p.grad for name, p in stock.model.named_parameters()}
    for name, parameter in ours.model.named_parameters():
        assert_close(
            parameter.grad, want[stock_name(name, stock)], msg=lambda m, n=name: f"{n}: {m}"
        )


# -- starts from checkpoints -----------------------------------------------------------------------

PREFIX = "decoder.output_projection."


def state_of(head):
    return {PREFIX + name: value.clone() for name, value in head.state_dict().items()}


@pytest.fixture(scope="module")
def stock(mt_data, tmp_path_factory):
    """Return the checkpoint of a stock architecture."""
    folder = tmp_path_factory.mktemp("stock")
    train(mt_data, folder, "transformer_tiny", 6, "--criterion", "cross_entropy")
    return last(folder)


@pytest.mark.parametrize("arch", [f"transformer_{token}_tiny" for token in ("softmax", "mos_plif")])
def test_a_head_can_start_from_a_stock_checkpoint(arch, mt_data, stock, tmp_path):
    done = train(mt_data, tmp_path, arch, 1, "--lr", "0", "--finetune-from-model", stock)
    old, new = parameters(stock), parameters(last(tmp_path))
    assert all((new[name] == old[name]).all() for name in old)
    added = sorted(new.keys() - old.keys())
    assert all(name.startswith(PREFIX) and name in done.output for name in added)
    assert bool(added) == ("softmax" not in arch)


@pytest.mark.parametrize("name", [n for n in vocabulary_names() if n != "plain"])
def test_the_matrix_of_a_softmax_starts_every_vocabulary_matrix(name):
    options = {"num_classes": 40, "feature_dim": 4, "bias": False}
    own = {"rank": 4} if name == "low_rank" else {"ratio": 1.0} if name == "codebook" else {}
    own |= {"by_class": True} if name == "unit" else {"shares": "1"} if name == "tiers" else {}
    stock = build_head("softmax", **options)
    head = build_head("softmax", vocabulary=name, **options, **own)
    state = state_of(stock)
    new = fill_new_parameters(state, head, PREFIX)
    assert new == sorted(PREFIX + key for key in head.state_dict())
    head.load_state_dict({key.removeprefix(PREFIX): value for key, value in state.items()})
    want = stock.weight - stock.weight.mean(0) if name == "centred" else stock.weight
    torch.testing.assert_close(head.weight, want)


def test_stock_starts_from_our_softmax_and_a_new_head_does_not_translate(mt_data, tmp_path):
    train(mt_data, tmp_path / "ours", "transformer_softmax_tiny", 2)
    path = last(tmp_path / "ours")
    words = ["--criterion", "cross_entropy", "--lr", "0", "--finetune-from-model", path]
    train(mt_data, tmp_path / "stock", "transformer_tiny", 1, *words)
    assert parameters(path).keys() == parameters(last(tmp_path / "stock")).keys()
    overrides = "{'head': 'moc', 'head_components': 2, 'head_dropout': 0.0}"
    done = attempt(
        *("generate", mt_data, "--path", path, "--model-overrides", overrides),
        *("--batch-size", 8, "--num-workers", 0),
    )
    assert done.code == 2
    assert "prior.weight" in done.output
    assert not done.lines("H-")


MOS, MOC, MIXTAPE, GSS = (
    [f"transformer_{token}_tiny"] for token in ("mos", "moc", "mixtape", "gss")
)
SOFTMAX, SIGSOFTMAX = ["transformer_softmax_tiny"], ["transformer_sigsoftmax_tiny"]
PLIF = ["transformer_plif_tiny", "--head-plif-knots", 5]
LEARNED = [*GSS, "--head-gss-learn"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (MOS, MOC, "--head mos there, moc in the model"),
        (GSS, SOFTMAX, "--head-pointwise gss there, identity in the model"),
        (SIGSOFTMAX, MOS, "--head softmax there, mos in the model"),
        ([*MOS, "--head-pointwise", "sigsoftmax"], MOS, "--head-pointwise sigsoftmax there"),
        ([*GSS, "--head-gss-c", -1], GSS, "--head-gss-c -1.0 there, -1.5 in the model"),
        (GSS, [*GSS, "--head-gss-k", 2], "--head-gss-k 2.5 there, 2.0"),
        ([*PLIF, "--head-plif-bound", 10], PLIF, "--head-plif-bound 10.0 there, 20.0"),
        (MIXTAPE, [*MIXTAPE, "--head-gate-weight-norm", 1], "--head-gate-weight-norm 0.0 there"),
        ([*MOS, "--head-context-scale", 2], MOS, "--head-context-scale 2.0 there, 1.0"),
        # a softmax, or the same function
        *((SOFTMAX, new, None) for new in (SOFTMAX, MOC, GSS, PLIF, MIXTAPE)),
        ([*MOS, "--head-dropout", 0.5], MOS, None),
        ([*PLIF, "--head-plif-init-sd", 0.1], [*PLIF, "--head-plif-freeze"], None),
        ([*LEARNED, "--head-gss-k", 1], LEARNED, None),
        (["transformer_highrank", "--head-pointwise", "gss"], GSS, None),
    ],
    ids=str,
)
def test_checkpoints_of_a_softmax_or_the_same_function_are_accepted(old, new, message, mt_data):
    options = OmegaConf.to_container(build(mt_data, *old).cfg.model, enum_to_str=True)
    refused = pytest.raises(ValueError, match=f"another output layer: {message}")
    with refused if message else nullcontext():
        build(mt_data, *new).model.check_saved_options(options)


SIZES = {"num_classes": 13, "feature_dim": 8, "components": 3}


@pytest.mark.parametrize("bias", [False, True])
def test_initial_values_fill_a_softmax_state_and_no_other(bias):
    softmax = build_head("softmax", num_classes=13, feature_dim=8, bias=bias)
    head = build_head("moc", **SIZES, bias=bias)
    head.states_function = False  # as in a model
    state = state_of(softmax)
    filled = fill_new_parameters(state, head, PREFIX)
    assert filled == [f"{PREFIX}{n}" for n in ("latent.bias", "latent.weight", "prior.weight")]
    assert (state[f"{PREFIX}prior.weight"] == head.prior.weight).all()
    assert (state[f"{PREFIX}weight"] == softmax.weight).all()
    for options, lost, message in (
        ({"num_classes": 14}, [], r"\(13, 8\).*\(14, 8\)"),
        ({"components": 2}, [], r"latent.weight: \(24, 8\)"),
        ({}, ["prior.weight"], "another output layer"),
    ):
        state = state_of(build_head("mos", **SIZES))
        for name in lost:
            del state[PREFIX + name]
        with pytest.raises(ValueError, match=message):
            fill_new_parameters(state, build_head("mos", **SIZES | options), PREFIX)
    state = {"decoder.embed_tokens.weight": torch.ones(5, 3), PREFIX + STORED: torch.zeros(5, 3)}
    with pytest.raises(ValueError, match="has a vocabulary matrix beside the embedding"):
        require_one_matrix(state)


NEW = ("head_z_loss", "head_loss_filter", "head_monitor", "head_loss", "rel_pos_clip", "rel_pos_in")


@pytest.mark.parametrize(
    "arch", ["transformer_mixtape", "transformer_lm_gss", "lstm_mos", "awd_lstm_lm_mos"]
)
def test_options_that_a_checkpoint_lacks_have_their_defaults(arch, mt_data, lm_data):
    built = build(lm_data if "_lm_" in arch else mt_data, arch)
    stored = OmegaConf.to_container(built.cfg.model, resolve=True, enum_to_str=True)
    older = OmegaConf.create({name: v for name, v in stored.items() if name not in NEW})
    model = built.task.build_model(older)
    assert older.head_monitor == 0 and older.head_loss == "auto"
    model.load_state_dict(built.model.state_dict())
    assert same(model.state_dict(), built.model.state_dict())
