"""Every architecture token, from the command line: learn, stop, resume, and use the model."""

import re

import pytest

from highrank_plugins.heads import tokens
from tests.fairseq_cli import run
from tests.tiny_corpus import unigram_entropy, valid_losses
from tests.trainings import last, parameters, same, train

UPDATES = 40
# a training validates and saves when it ends; of each epoch that would cost more than to train it
ONLY_AT_THE_END = ["--validate-interval", "99", "--save-interval", "99"]
# 1e5 knots are slow for a model of this size
SMALL = {
    **{token: ["--head-plif-knots", "500"] for token in ("plif", "mos_plif")},
    "low_rank": ["--head-low-rank-rank", "8"],
    "codebook": ["--head-codebook-ratio", "0.9"],
}
# the published LSTMs are trained for hours
QUICK = {
    "awd_lstm": "--lr 0.02 --decoder-layers 1 --dropouti 0.1 --wdrop 0.2".split(),
    "lstm": ["--lr", "0.02"],
}


TRANSLATION = [f"transformer_{token}_tiny" for token in sorted(tokens())]


@pytest.mark.parametrize("arch", [*TRANSLATION, "lstm_mos", "lstm_mixtape"])
def test_every_translation_arch_learns(arch, mt_data, tmp_path):
    trunk, _, token = arch.removesuffix("_tiny").partition("_")
    options = ["--label-smoothing", "0.1", *ONLY_AT_THE_END]
    options += [*SMALL.get(token, []), *QUICK.get(trunk, [])]
    loss = learn(arch, mt_data, tmp_path, options)
    assert loss < unigram_entropy(mt_data / "dict.de.txt") - 1
    whole, parts = (translations(mt_data, tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts


LANGUAGE_MODELS = [
    *(f"transformer_lm_{token}" for token in sorted(tokens())),
    *(f"awd_lstm_lm_{token}" for token in ("softmax", "mos", "mixtape", "plif")),
]


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_every_language_model_arch_learns(arch, lm_data, tmp_path):
    trunk, _, token = arch.partition("_lm_")
    options = [*ONLY_AT_THE_END, *SMALL.get(token, []), *QUICK.get(trunk, [])]
    loss = learn(arch, lm_data, tmp_path, options)
    assert loss < unigram_entropy(lm_data / "dict.txt") - 1
    assert perplexity_in_bits(lm_data, tmp_path / "whole") == pytest.approx(loss, abs=2e-3)


def learn(arch, data, folder, options):
    """Train, and once more in two parts; return the loss of the validation."""
    done = train(data, folder / "whole", arch, UPDATES, *options)
    train(data, folder / "parts", arch, UPDATES // 2, *options)
    resumed = train(data, folder / "parts", arch, UPDATES, *options)
    assert "Loaded checkpoint" in resumed.output
    assert same(parameters(last(folder / "whole")), parameters(last(folder / "parts")))
    return valid_losses(done.output)[-1]


def translations(data, save_dir):
    done = run(
        *("generate", data, "--path", last(save_dir), "--gen-subset", "test", "--beam", 2),
        *("--batch-size", 8, "--required-batch-size-multiple", 1, "--num-workers", 0),
    )
    found = done.lines("H-")
    assert len(found) == 20
    return found


def perplexity_in_bits(data, save_dir):
    done = run(
        *("eval-lm", data, "--path", last(save_dir), "--gen-subset", "valid"),
        *("--tokens-per-sample", 32, "--batch-size", 8, "--num-workers", 0),
    )
    return float(re.search(r"Loss \(base 2\): ([\d.]+)", done.output)[1])
