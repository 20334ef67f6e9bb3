"""fairseq's commands, scripts and hub interface on trained heads."""

import re

import pytest
import torch

from highrank_plugins.heads import tokens
from highrank_plugins.models.transformer import TransformerHeadModel
from tests.fairseq_cli import run
from tests.tiny_corpus import TEXT, unigram_entropy, valid_losses
from tests.trainings import last, parameters, same, train

shares_models = pytest.mark.xdist_group("commands")
ALL = ["--batch-size", 8, "--required-batch-size-multiple", 1, "--num-workers", 0]


@pytest.fixture(scope="module")
def trained(mt_data, tmp_path_factory):
    """Train a translation model; keep what the run printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = train(mt_data, folder, "transformer_mos_tiny", 40, "--label-smoothing", "0.1")
    return folder, done.output


def translate(data, path, *options):
    """Return hypotheses of the test set in order."""
    words = [*ALL, "--path", path, "--gen-subset", "test", "--beam", 2, *options]
    rows = [line.split("\t") for line in run("generate", data, *words).lines("H-")]
    hypotheses = {int(name[2:]): (float(score), text) for name, score, text in rows}
    assert sorted(hypotheses) == list(range(20))
    return [hypotheses[i] for i in range(20)]


@shares_models
def test_references_and_validate_have_the_loss_of_training(trained, mt_data):
    folder, output = trained
    want = pytest.approx(valid_losses(output)[-1], abs=2e-3)
    where = [mt_data, "--path", last(folder), *ALL]
    done = run("generate", *where, "--gen-subset", "valid", "--score-reference")
    scores = [float(x) for line in done.lines("P-") for x in line.split("\t")[1].split()]
    assert -sum(scores) / len(scores) == want
    (signature,) = done.lines("signature: ")
    assert "|ctx:sentence|" in signature and f"|n:{len(scores)}|mass:1" in signature
    done = run("validate", *where, "--task", "translation", "--valid-subset", "valid")
    found = re.findall(r"valid \| .*?nll_loss ([\d.]+)", done.output)
    assert re.search(r"signature: ppl\|\S*ctx:sentence\|\S*mass:1[+-]\S+e-\d", done.output)
    assert float(found[-1]) == want


@shares_models
def test_interactive_and_hub_translate_like_generate(trained, mt_data):
    folder, _ = trained
    want = [text for _, text in translate(mt_data, last(folder))]
    source = (TEXT / "test.en").read_text()
    words = ["--source-lang", "en", "--target-lang", "de", "--beam", 2]
    done = run("interactive", mt_data, "--path", last(folder), *words, stdin=source)
    assert [line.split("\t")[2] for line in done.lines("H-")] == want

    hub = TransformerHeadModel.from_pretrained(str(folder), "checkpoint_last.pt", str(mt_data))
    assert hub.translate(source.splitlines(), beam=2) == want

    state = torch.load(last(folder), weights_only=False)
    state["cfg"]["task"].update(source_lang=None, target_lang=None)  # of a run that inferred them
    torch.save(state, folder / "inferred.pt")
    words = ["--data", mt_data, "--beam", 2]
    done = run("highrank", "translate", folder / "inferred.pt", *words, stdin=source)
    assert done.output.splitlines()[-20:] == want


# -- every architecture token: learn, stop, resume, and use the model -----------------------------

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


ARCHS = [f"transformer_{token}_tiny" for token in sorted(tokens())]


@pytest.mark.parametrize("arch", [*ARCHS, "lstm_mos", "lstm_mixtape"])
def test_every_translation_arch_learns(arch, mt_data, tmp_path):
    trunk, _, token = arch.removesuffix("_tiny").partition("_")
    options = ["--label-smoothing", "0.1", *ONLY_AT_THE_END]
    options += [*SMALL.get(token, []), *QUICK.get(trunk, [])]
    loss = learn(arch, mt_data, tmp_path, options)
    assert loss < unigram_entropy(mt_data / "dict.de.txt") - 1
    whole, parts = (translate(mt_data, last(tmp_path / n)) for n in ("whole", "parts"))
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


def perplexity_in_bits(data, save_dir):
    done = run(
        *("eval-lm", data, "--path", last(save_dir), "--gen-subset", "valid"),
        *("--tokens-per-sample", 32, "--batch-size", 8, "--num-workers", 0),
    )
    return float(re.search(r"Loss \(base 2\): ([\d.]+)", done.output)[1])
