"""What fairseq's Transformer can do, it can do with a head."""

from argparse import Namespace

import pytest
import torch

from tests.models.small import build
from tests.tiny_corpus import unigram_entropy, valid_losses
from tests.trainings import last, parameters, train

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
