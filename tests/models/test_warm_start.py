"""A softmax checkpoint of stock fairseq starts any head; others start their own model."""

import functools

import pytest
import torch
from omegaconf import OmegaConf

from highrank_plugins.heads import build_head, vocabulary_names
from highrank_plugins.models.warm_start import STORED, fill_new_parameters, require_one_matrix
from tests.fairseq_cli import attempt, run
from tests.models.small import build
from tests.trainings import last, parameters, same, train

PREFIX = "decoder.output_projection."


def state_of(head):
    return {PREFIX + name: value.clone() for name, value in head.state_dict().items()}


@pytest.fixture(scope="module")
def stock(mt_data, tmp_path_factory):
    """Return a function of the checkpoint of a stock architecture."""

    @functools.cache
    def trained(arch):
        folder = tmp_path_factory.mktemp(arch)
        train(mt_data, folder, arch, 6, "--criterion", "cross_entropy")
        return last(folder)

    return trained


@pytest.mark.parametrize("arch", [
    *(f"transformer_{token}_tiny" for token in ("softmax", "mos", "mixtape", "mos_plif")),
    "lstm_softmax", "lstm_mixtape",
])  # fmt: skip
def test_a_head_can_start_from_a_stock_checkpoint(arch, mt_data, stock, tmp_path):
    path = stock("lstm" if arch.startswith("lstm") else "transformer_tiny")
    done = train(mt_data, tmp_path, arch, 1, "--lr", "0", "--finetune-from-model", path)
    old, new = parameters(path), parameters(last(tmp_path))
    old = {name.replace(".fc_out.", ".output_projection."): value for name, value in old.items()}
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


def test_a_matrix_that_is_no_embedding_is_refused_beside_one():
    state = {"decoder.embed_tokens.weight": torch.ones(5, 3)}
    state[PREFIX + STORED] = torch.zeros(5, 3)
    with pytest.raises(ValueError, match="has a vocabulary matrix beside the embedding"):
        require_one_matrix(state)


def test_stock_fairseq_can_start_from_our_softmax_checkpoint(mt_data, tmp_path):
    train(mt_data, tmp_path / "ours", "transformer_softmax_tiny", 2)
    stock = ["--criterion", "cross_entropy", "--lr", "0"]
    start = ["--finetune-from-model", last(tmp_path / "ours")]
    train(mt_data, tmp_path / "stock", "transformer_tiny", 1, *stock, *start)
    assert parameters(last(tmp_path / "ours")).keys() == parameters(last(tmp_path / "stock")).keys()


def test_a_head_that_was_never_trained_does_not_translate(mt_data, tmp_path):
    train(mt_data, tmp_path, "transformer_softmax_tiny", 2)
    overrides = "{'head': 'moc', 'head_components': 2, 'head_dropout': 0.0}"
    done = attempt(
        *("generate", mt_data, "--path", last(tmp_path), "--model-overrides", overrides),
        *("--batch-size", 8, "--num-workers", 0),
    )
    assert done.code == 2
    assert "prior.weight" in done.output
    assert not done.lines("H-")


def check_start(data, old, new):
    """Whether a checkpoint of one model may start the training run of another; both as words."""
    options = OmegaConf.to_container(build(data, *old).cfg.model, enum_to_str=True)
    build(data, *new).model.check_saved_options(options)


MOS, MOC, MIXTAPE, GSS = (
    [f"transformer_{token}_tiny"] for token in ("mos", "moc", "mixtape", "gss")
)
SOFTMAX, SIGSOFTMAX = ["transformer_softmax_tiny"], ["transformer_sigsoftmax_tiny"]
PLIF = ["transformer_plif_tiny", "--head-plif-knots", 5]


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
    ],
    ids=str,
)
def test_parameters_of_another_function_are_refused(old, new, message, mt_data):
    with pytest.raises(ValueError, match=f"another output layer: {message}"):
        check_start(mt_data, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((SOFTMAX, new) for new in (SOFTMAX, MOC, GSS, PLIF, MIXTAPE)),
        ([*MOS, "--head-dropout", 0.5], MOS),
        ([*PLIF, "--head-plif-init-sd", 0.1], [*PLIF, "--head-plif-freeze"]),
        *(
            ([*GSS, "--head-gss-learn", "--head-gss-k", k], [*GSS, "--head-gss-learn"])
            for k in "12"
        ),
        (["transformer_highrank", "--head-pointwise", "gss"], GSS),
    ],
    ids=str,
)
def test_checkpoints_of_a_softmax_or_the_same_function_are_accepted(old, new, mt_data):
    check_start(mt_data, old, new)


SIZES = {"num_classes": 13, "feature_dim": 8, "components": 3}


@pytest.mark.parametrize(
    ("options", "lost", "message"),
    [
        ({"num_classes": 14}, [], r"\(13, 8\).*\(14, 8\)"),
        ({"components": 2}, [], r"latent.weight: \(24, 8\)"),
        ({}, ["prior.weight"], "another output layer"),
    ],
    ids=str,
)
def test_other_parameters_are_refused(options, lost, message):
    state = state_of(build_head("mos", **SIZES))
    for name in lost:
        del state[PREFIX + name]
    with pytest.raises(ValueError, match=message):
        fill_new_parameters(state, build_head("mos", **SIZES | options), PREFIX)


@pytest.mark.parametrize("bias", [False, True])
def test_initial_values_fill_a_softmax_state(bias):
    softmax = build_head("softmax", num_classes=13, feature_dim=8, bias=bias)
    head = build_head("moc", **SIZES, bias=bias)
    head.states_function = False  # as in a model
    state = state_of(softmax)
    filled = fill_new_parameters(state, head, PREFIX)
    assert filled == [f"{PREFIX}{n}" for n in ("latent.bias", "latent.weight", "prior.weight")]
    assert (state[f"{PREFIX}prior.weight"] == head.prior.weight).all()
    assert (state[f"{PREFIX}weight"] == softmax.weight).all()


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


@pytest.mark.parametrize(
    ("arch", "encoder"),
    [
        ("transformer_mos_tiny", ["--encoder-layers-to-keep", "2"]),
        ("transformer_highrank", ["--encoder-layers-to-keep", "0,1"]),
        ("transformer_lm_mixtape", []),
    ],
)
def test_kept_layers_are_trained_and_loaded_again(arch, encoder, mt_data, lm_data, tmp_path):
    data = mt_data if encoder else lm_data
    deep = [*(["--encoder-layers", 3] if encoder else []), "--decoder-layers", 3]
    relative = ["--rel-pos-clip", 3]
    train(data, tmp_path / "deep", arch, 1, *deep, *relative)
    keep = [*encoder, "--decoder-layers-to-keep", "0,2", "--lr", 0]
    start = ["--finetune-from-model", last(tmp_path / "deep")]
    train(data, tmp_path / "kept", arch, 1, *deep, *relative, *keep, *start)

    old, new = parameters(last(tmp_path / "deep")), parameters(last(tmp_path / "kept"))
    layers = {name.split(".")[2] for name in new if name.startswith("decoder.layers.")}
    assert layers == {"0", "1"}
    for name in ("self_attn.relative.key_table", "fc1.weight"):
        assert (new[f"decoder.layers.1.{name}"] == old[f"decoder.layers.2.{name}"]).all()
    tool = ["generate"] if encoder else ["eval-lm", "--tokens-per-sample", 32]
    where = [data, "--path", last(tmp_path / "kept"), "--num-workers", 0]
    run(*tool, *where)
