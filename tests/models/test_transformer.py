"""What fairseq's Transformer can do, it can do with a head, and with relative positions."""

from argparse import Namespace

import pytest
import torch
from fairseq.modules import MultiheadAttention

from highrank_plugins.heads import build_head
from highrank_plugins.measures.base import in_float64
from highrank_plugins.measures.unargmaxable import UnargmaxableMeasure
from highrank_plugins.models.relative_positions import RelativeSelfAttention
from highrank_plugins.models.warm_start import fill_new_tables
from highrank_plugins.trunks import RelativeAttention
from tests.fairseq_cli import run
from tests.models.small import assert_scores_of_one_pass, build, gradients
from tests.tiny_corpus import unigram_entropy, valid_losses
from tests.trainings import last, parameters, same, train

# and what each needs beside itself; --quant-noise-scalar of fairseq wants a GPU
OPTIONS = {
    "--fp16": ["--fp16-no-flatten-grads", "--fp16-init-scale", "128"],
    "--memory-efficient-fp16": ["--fp16-init-scale", "128"],
    "--bf16": [],
    "--memory-efficient-bf16": [],
    "--amp": [],  # on a CPU without autocast and scale: the way through the trainer
    "--checkpoint-activations": [],
    "--share-decoder-input-output-embed": [],
    "--quant-noise-pq": ["0.05"],
    "--decoder-layerdrop": ["0.1"],
    "--update-freq": ["2"],
    "--head-loss": ["reference"],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_translation_models_work(option, mt_data, tmp_path):
    words = [option, *OPTIONS[option]]
    done = train(mt_data, tmp_path, "transformer_mixtape_tiny", 30, *words)
    assert valid_losses(done.output)[-1] < unigram_entropy(mt_data / "dict.de.txt")
    assert all(p.isfinite().all() for p in parameters(last(tmp_path)).values())


@pytest.mark.parametrize("token", ["mos", "mixtape", "gss"])
def test_features_give_the_probabilities(token, mt_data):
    built = build(mt_data, f"transformer_{token}_tiny")
    model, inputs = built.model.eval(), built.batch()["net_input"]
    features, _ = model(**inputs, features_only=True)
    log_probs, extra = model(**inputs)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, model.head(features))
    normalised = model.get_normalized_probs((log_probs, extra), log_probs=True)
    torch.testing.assert_close(normalised, log_probs)
    # a sampler divides by the temperature first; probabilities must still add up to one
    tempered = model.get_normalized_probs((log_probs / 2, extra), log_probs=False)
    torch.testing.assert_close(tempered.sum(-1), torch.ones_like(tempered[..., 0]))
    log_probs, _ = model.half()(**inputs)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(log_probs[..., 0]))


# -- a vocabulary matrix that is a function of others ------------------------------------------


@pytest.mark.parametrize(("arch", "options"), [
    ("transformer_lm_unit", ["--head-unit-by-class"]),
    ("transformer_lm_mos", ["--head-vocabulary", "centred"]), ("transformer_unit", []),
])  # fmt: skip
def test_a_tied_matrix_is_read_again(arch, options, lm_data, mt_data, tmp_path):
    data = lm_data if "_lm_" in arch else mt_data
    words = ["--share-decoder-input-output-embed", *options]
    train(data, tmp_path / "whole", arch, 4, *words)
    for updates in (2, 4):
        train(data, tmp_path / "parts", arch, updates, *words)
    found = parameters(last(tmp_path / "parts"))
    assert same(found, parameters(last(tmp_path / "whole")))
    embedding = found["decoder.embed_tokens.weight"]
    assert torch.equal(
        embedding, found["decoder.output_projection.parametrizations.weight.original"]
    )
    if "_lm_" in arch:
        run("eval-lm", data, "--path", last(tmp_path / "parts"), "--tokens-per-sample", 32)


def test_averages_copy_the_codes_of_a_codebook(lm_data, tmp_path):
    train(lm_data, tmp_path, "transformer_lm_codebook", 3, "--store-ema", "--ema-decay", "0.5")
    state = torch.load(last(tmp_path), weights_only=False)  # written by this test
    codes = [name for name in state["model"] if name.endswith("codes")]
    averages = state["extra_state"]["ema"]
    assert codes and all(torch.equal(averages[n], state["model"][n]) for n in codes)
    moved = "decoder.embed_tokens.weight"
    assert not torch.equal(averages[moved], state["model"][moved])


def test_the_rank_of_a_product_is_that_of_its_factors():
    """Measure factors of rank 4, whose product in float32 has a higher rank by rounding."""
    torch.manual_seed(0)
    options = {"num_classes": 40, "feature_dim": 64, "bias": False}
    head = build_head("softmax", vocabulary="low_rank", rank=4, **options)
    tall = head.parametrizations.weight.original0.detach().double()
    narrow = options | {"feature_dim": 4, "weight": torch.nn.Parameter(tall)}
    found, want = (
        UnargmaxableMeasure().measure(Namespace(head=each, word=str))
        for each in (head, build_head("softmax", **narrow).double())
    )
    assert want.count > 0 and found.classes == want.classes
    assert torch.linalg.matrix_rank(in_float64(head).weight) == 4


# -- --rel-pos-clip: which attentions it changes, and that decoding agrees with training -----------

CLIP = ["--rel-pos-clip", 3]
RELATIVE = [*CLIP, "--no-token-positional-embeddings"]
TABLES = ("key_table", "value_table")
MT, LM = "transformer_mixtape_tiny", "transformer_lm_mos"


def tables(*sides):
    return {f"{side}.layers.0.self_attn.relative.{name}" for side in sides for name in TABLES}


def added(model, stock):
    """Return the names of new parameters; all others must have stock's values."""
    new, old = model.state_dict(), stock.state_dict()
    assert same({name: new[name] for name in old}, old)
    return new.keys() - old.keys()


def empty_tables(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(TABLES):
                parameter.zero_()
    return model


@pytest.mark.parametrize(
    ("arch", "words", "sides"),
    [
        (MT, CLIP, ("encoder", "decoder")),
        (MT, [*CLIP, "--rel-pos-in", "encoder"], ("encoder",)),
        (MT, [*CLIP, "--rel-pos-in", "decoder"], ("decoder",)),
        (LM, CLIP, ("decoder",)),
        (MT, ["--rel-pos-clip", 0], ()),
        (LM, ["--rel-pos-clip", 0], ()),
    ],
    ids=str,
)
def test_only_tables_are_added(arch, words, sides, mt_data, lm_data):
    data = lm_data if "_lm_" in arch else mt_data
    model = build(data, arch, *words).model
    assert added(model, build(data, arch).model) == tables(*sides)
    attentions = [m for m in model.modules() if isinstance(m, RelativeSelfAttention)]
    assert [m.relative.clip for m in attentions] == [3] * len(sides)
    if arch == MT:
        assert type(model.decoder.layers[0].encoder_attn) is MultiheadAttention


def test_padding_and_checkpointed_activations_change_nothing(mt_data):
    built = build(mt_data, MT, *RELATIVE)
    model, sample = built.model.eval(), built.batch()
    found = gradients(built, sample)
    assert all(found[name].any() for name in tables("encoder", "decoder"))
    other = build(mt_data, MT, *RELATIVE, "--checkpoint-activations")
    torch.testing.assert_close(gradients(other, other.batch()), found)
    together, _ = model(**sample["net_input"])
    data = built.task.dataset("valid")
    lengths = sample["target"].ne(built.task.target_dictionary.pad()).sum(1).tolist()
    assert len(set(lengths)) > 1
    for row, number in enumerate(sample["id"].tolist()):
        alone, _ = model(**data.collater([data[number]])["net_input"])
        torch.testing.assert_close(together[row, : lengths[row]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_padding_targets_on_the_left_does_not_change_the_loss(half, mt_data):
    losses = []
    for words in (RELATIVE, [*RELATIVE, "--left-pad-target"]):
        built = build(mt_data, MT, *words)
        model = built.model.eval().half() if half else built.model.eval()
        loss, *_ = built.criterion(model, built.batch())
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if half else 1e-6)


@pytest.mark.parametrize("words", [RELATIVE, CLIP, [*CLIP, "--rel-pos-in", "decoder"]], ids=str)
def test_hypotheses_have_the_scores_of_teacher_forcing(words, mt_data, lm_data):
    built = build(mt_data, MT, *words)
    assert_scores_of_one_pass(built, built.batch())
    if words is RELATIVE:
        model, tokens, state = (
            build(lm_data, LM, *words).model.eval(),
            torch.arange(4, 13)[None],
            {},
        )
        want, _ = model(tokens)
        steps = [model.decoder(tokens[:, : t + 1], incremental_state=state)[0] for t in range(9)]
        torch.testing.assert_close(torch.cat(steps, 1), want, rtol=0, atol=1e-5)


def test_weights_and_padding_are_those_of_stock(mt_data):
    models = [build(mt_data, MT).model, empty_tables(build(mt_data, MT, *CLIP).model)]
    stock, ours = (m.encoder.layers[0].self_attn.eval() for m in models)
    x = torch.randn(5, 2, 32)
    padding = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
    for needed in (False, True):
        want = stock(x, x, x, key_padding_mask=padding, need_weights=needed)
        got = ours(x, x, x, key_padding_mask=padding, need_weights=needed)
        torch.testing.assert_close(got, want)
    decoders, states = [m.decoder.layers[0].self_attn.eval() for m in models], ({}, {})
    for padding in (None, torch.tensor([[False], [True]]), None):  # among earlier steps
        x = torch.randn(1, 2, 32)
        want, got = (
            attention(x, x, x, key_padding_mask=padding, incremental_state=state)
            for attention, state in zip(decoders, states, strict=True)
        )
        torch.testing.assert_close(got, want)
    weights = got[1]
    assert weights[1, 0, 1] == 0 < weights[0, 0, 1]


# -- checkpoints ----------------------------------------------------------------------------------

ARCH = "transformer_mos_tiny"


def test_a_checkpoint_without_tables_starts_with_zeros_and_says_so(mt_data, tmp_path):
    train(mt_data, tmp_path / "without", ARCH, 4)
    without_tables = last(tmp_path / "without")
    start = ["--finetune-from-model", without_tables, "--lr", 0, "--rel-pos-clip", 4]
    done = train(mt_data, tmp_path, ARCH, 1, *start)
    old, new = parameters(without_tables), parameters(last(tmp_path))
    assert same({name: new[name] for name in old}, old)
    added = sorted(new.keys() - old.keys())
    assert len(added) == 4
    assert all(not new[name].any() and name in done.output for name in added)


def model_of(clip, *sides):
    """Return modules named as those of a Transformer."""

    def attention():
        return torch.nn.ModuleDict({"relative": RelativeAttention(4, clip)})

    named = {side: torch.nn.ModuleList([attention()]) for side in sides}
    return torch.nn.ModuleDict(named)


def test_the_tables_of_one_side_may_be_new_but_not_others():
    state = model_of(2, "encoder").state_dict()
    new = [f"decoder.0.relative.{name}" for name in TABLES]
    assert fill_new_tables(state, model_of(2, "encoder", "decoder")) == new
    for clip, side, message in (
        (3, "decoder", r"\(5, 4\) in the checkpoint, \(7, 4\) in the model"),
        (2, "encoder", "the checkpoint has relative positions; use --rel-pos-clip"),
    ):
        with pytest.raises(ValueError, match=message):
            fill_new_tables(model_of(2, "decoder").state_dict(), model_of(clip, side))
