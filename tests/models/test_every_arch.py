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


RECENT = ("softcap", "sigmoid_cap", "multimax", "unit", "low_rank", "codebook")
# Their layers are trained on another trunk too: those training runs are left to `--all`.
ELSEWHERE = {
    *(f"transformer_{t}_tiny" for t in ("gss", "monotone_mlp", "sigsoftmax", "mos_sigsoftmax")),
    *(f"transformer_lm_{t}" for t in ("moc", "plif", "mos_plif")),
    *(f"{trunk}_{t}" for trunk in ("transformer_lm", "awd_lstm_lm") for t in RECENT),
    *(f"transformer_{t}_tiny" for t in RECENT),
    *("transformer_lm_centred", "transformer_tiers_tiny"),
    *("lstm_softcap", "lstm_sigmoid_cap"),
    *("lstm_mos", "awd_lstm_lm_softmax", "awd_lstm_lm_plif", "awd_lstm_lm_mixtape"),
    *("transformer_mos_tiny", "transformer_lm_softmax", "transformer_lm_mixtape"),
}

# One layer of each trunk is stopped and resumed, each layer once; tests/faults and
# tests/tasks/test_resume.py stop training runs at any point.
RESUMED = {
    *("transformer_mixtape_tiny", "transformer_plif_tiny", "transformer_moc_tiny"),
    *("transformer_lm_gss", "transformer_lm_monotone_mlp", "transformer_lm_mos_sigsoftmax"),
    *("lstm_mixtape", "awd_lstm_lm_mos"),
}


def marked(arch):
    return pytest.param(arch, marks=pytest.mark.long if arch in ELSEWHERE else ())


TRANSLATION = [f"transformer_{token}_tiny" for token in sorted(tokens())]


@pytest.mark.parametrize(
    "arch", [marked(arch) for arch in [*TRANSLATION, "lstm_mos", "lstm_mixtape"]]
)
def test_every_translation_arch_learns(arch, mt_data, tmp_path):
    trunk, _, token = arch.removesuffix("_tiny").partition("_")
    options = ["--label-smoothing", "0.1", *ONLY_AT_THE_END]
    options += [*SMALL.get(token, []), *QUICK.get(trunk, [])]
    loss = learn(arch, mt_data, tmp_path, options)
    assert loss < unigram_entropy(mt_data / "dict.de.txt") - 1
    whole = translations(mt_data, tmp_path / "whole")
    assert arch not in RESUMED | ELSEWHERE or whole == translations(mt_data, tmp_path / "parts")


LANGUAGE_MODELS = [
    *(f"transformer_lm_{token}" for token in sorted(tokens())),
    *(f"awd_lstm_lm_{token}" for token in ("softmax", "mos", "mixtape", "plif")),
]


@pytest.mark.parametrize("arch", [marked(arch) for arch in LANGUAGE_MODELS])
def test_every_language_model_arch_learns(arch, lm_data, tmp_path):
    trunk, _, token = arch.partition("_lm_")
    options = [*ONLY_AT_THE_END, *SMALL.get(token, []), *QUICK.get(trunk, [])]
    loss = learn(arch, lm_data, tmp_path, options)
    assert loss < unigram_entropy(lm_data / "dict.txt") - 1
    assert perplexity_in_bits(lm_data, tmp_path / "whole") == pytest.approx(loss, abs=2e-3)


def learn(arch, data, folder, options):
    """Train, for RESUMED once more in two parts; return the loss of the validation."""
    done = train(data, folder / "whole", arch, UPDATES, *options)
    if arch in RESUMED | ELSEWHERE:
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
