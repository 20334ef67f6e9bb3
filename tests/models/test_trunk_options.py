"""What fairseq's Transformer can do, it can do with a head, and with a matrix made of others."""

from argparse import Namespace

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.measures.base import in_float64
from highrank_plugins.measures.unargmaxable import UnargmaxableMeasure
from tests.fairseq_cli import run
from tests.models.small import build
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


def test_half_precision_models_return_float32(mt_data):
    built = build(mt_data, "transformer_mixtape_tiny")
    log_probs, _ = built.model.half().eval()(**built.batch()["net_input"])
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(log_probs[..., 0]))


@pytest.mark.parametrize("modules", [None, ["TransformerDecoder"], ["MixtureOfSoftmaxes"]])
def test_retained_dropout_applies_to_the_head_too(modules, mt_data):
    model = build(mt_data, "transformer_mos_tiny", "--head-dropout", "0.5").model
    generation = Namespace(retain_dropout=True, retain_dropout_modules=modules)
    model.prepare_for_inference_(Namespace(generation=generation))
    features = torch.randn(3, model.head.feature_dim)
    drawn = [model.head(features) for _ in range(2)]
    assert torch.equal(*drawn) == (modules == ["TransformerDecoder"])


# -- a vocabulary matrix that is a function of others ------------------------------------------


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transformer_lm_centred", []),
        ("transformer_lm_unit", ["--head-unit-by-class"]),
        ("transformer_lm_mos", ["--head-vocabulary", "centred"]),
        ("transformer_unit", []),
    ],
)
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
    want = UnargmaxableMeasure().measure(words_of(build_head("softmax", **narrow).double()))
    found = UnargmaxableMeasure().measure(words_of(head))
    assert want.count > 0 and found.classes == want.classes
    assert torch.linalg.matrix_rank(in_float64(head).weight) == 4


def words_of(head):
    return Namespace(head=head, word=str)
