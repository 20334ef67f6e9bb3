"""A served model that computes another function than the trained one is refused."""

import copy
import json
import shutil

import pytest
import torch
from torch import nn

from highrank_plugins.common.certificate import (
    POSITIONS,
    certificate_of,
    certificate_path,
    compare,
    of_fairseq,
)
from highrank_plugins.common.user_error import UserError
from highrank_plugins.inference.loading import load_model
from highrank_plugins.reports.model_folder import certify
from tests.fairseq_cli import attempt, run
from tests.models.small import build
from tests.trainings import last, train

WORDS = """--head-bias true --head-pointwise softcap --head-softcap-cap 30 --head-context-scale 4
    --head-components 2 --share-decoder-input-output-embed
    --activation-fn gelu_accurate""".split()


@pytest.fixture(scope="module")
def model(joined_data):
    """Return a capped MoS that is far from its start and sure of its words, as a trained one is."""
    model = build(joined_data, "transformer_mos", *WORDS).model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator)
        head(model).weight[6:12] *= 4  # sure of these words
        first, second = head(model).latent.weight.chunk(2)
        second.copy_(first + 0.1 * second)  # both components have the same first word
        head(model).prior.weight *= 0.1
    return model


@pytest.fixture(scope="module")
def certificate(model, tmp_path_factory):
    return written(model, tmp_path_factory.mktemp("certificate") / "certificate.json")


def written(model, path):
    path.write_text(json.dumps(certificate_of(of_fairseq(copy.deepcopy(model).double()))))
    return path


def head(model):
    return model.decoder.output_projection


def values(model, function):
    """Replace the function of all logits."""
    head(model).pointwise.apply_to = function(head(model).pointwise.apply_to)


def swap(matrix, first, second):
    with torch.no_grad():
        matrix[[first, second]] = matrix[[second, first]]


def replaced(model, name, value):
    """Replace an attribute of all modules that have it."""
    for module in model.modules():
        if hasattr(module, name):
            setattr(module, name, value)


def cap_before_bias(model):
    """Cap W h instead of W h + b."""
    b = head(model).bias.detach()
    values(model, lambda function: lambda z, tensors: function(z - b, tensors) + b)


def untied(model):
    """Give the output layer a copy of the shared matrix that has missed a step of training."""
    head(model).weight = nn.Parameter(head(model).weight.detach() * 1.001)


def scaled(module, name, factor):
    setattr(module, name, getattr(module, name) * factor)


# what somebody serves by mistake → the change of the model
FAULTS = {
    "cap dropped": lambda m: values(m, lambda f: lambda z, tensors: z),
    "cap applied twice": lambda m: values(m, lambda f: lambda z, t: f(f(z, t), t)),
    "cap before bias": cap_before_bias,
    "twice the cap": lambda m: scaled(head(m).pointwise, "cap", 2),
    "another temperature": lambda m: values(m, lambda f: lambda z, t: 1.001 * f(z, t)),
    "another context scale": lambda m: scaled(head(m), "context_scale", 1.05),
    "prior dropped": lambda m: nn.init.zeros_(head(m).prior.weight),
    "two words of the dictionary swapped": lambda m: swap(m.decoder.embed_tokens.weight, 20, 24),
    "tied matrix untied": untied,
    "two pieces of the source swapped": lambda m: swap(m.encoder.embed_tokens.weight, 49, 47),
    "another activation": lambda m: replaced(m, "activation_fn", nn.functional.gelu),  # exact
    "another embedding scale": lambda m: scaled(m.decoder, "embed_scale", 1.002),
    "another epsilon": lambda m: replaced(m, "eps", 1e-2),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_is_refused_although_greedy_words_agree(model, certificate, fault):
    other = copy.deepcopy(model)
    fault(other)
    saved = json.loads(certificate.read_text())
    words = [torch.tensor(saved[name]) for name in ("source", "previous")]
    greedy = [of_fairseq(m).log_probs(*words).argmax(-1) for m in (model, other)]
    assert greedy[0].equal(greedy[1]) and len(greedy[0].unique()) > 4
    with pytest.raises(UserError, match=r"another function than the certified one: log P of class"):
        compare(certificate, of_fairseq(other))


def test_the_tolerance_is_that_of_the_precision(model, certificate):
    served, saved = of_fairseq(model), json.loads(certificate.read_text())
    numbers = torch.tensor(saved["numbers"]).double()
    assert len(numbers) == POSITIONS and (numbers[:, -1] - 1).abs().max() < 1e-6
    columns = -(-saved["words"][1] // POSITIONS)
    assert numbers.shape[1] == 1 + columns + 1  # the next word, each 64th class, Σ P

    def off_by(gap, dtype=torch.float32):
        """Return the model's log P that is wrong by a number, or by numbers [n, M]."""
        return served._replace(
            dtype=dtype, log_probs=lambda *words: (served.log_probs(*words) + gap).double()
        )

    assert compare(certificate, served) < 5e-5
    fourth = torch.arange(served.words[1]) == 3
    for gap, dtype in ((5e-5, torch.float32), (5e-3, torch.float16), (5e-3, torch.bfloat16)):
        assert gap / 2 < compare(certificate, off_by(gap * fourth, dtype)) < gap * 2
        with pytest.raises(UserError, match=r"log P of class 3 at position .* differ by more"):
            compare(certificate, off_by(5 * gap * fourth, dtype))
    with pytest.raises(UserError, match=r"log P of class .* is nan, certified is"):
        compare(certificate, off_by(torch.nan))
    # the words of the certificate have their log P, and others have too much
    target = torch.tensor(saved["target"])
    places, size = torch.arange(POSITIONS)[:, None], served.words[1]
    chosen = (places + torch.arange(0, size, POSITIONS)) % size
    chosen = torch.cat([chosen, target.view(-1, 1)], 1)
    gap = torch.full((POSITIONS, size), 1e-3).scatter_(1, chosen, 0).view(*target.shape, size)
    with pytest.raises(UserError, match=r"one: Σ P at position \d+ is 1.00\d+, certified is 1.0"):
        compare(certificate, off_by(gap))


def test_damaged_certificates_are_refused(model, certificate, tmp_path):
    path, saved = tmp_path / "c.json", json.loads(certificate.read_text())
    wrong = {"numbers": [[1.0]]}, {"source": [[10**6]] * 8}, {"sha256": []}, {"words": [120, 119]}
    for change in ([], *wrong):
        path.write_text(json.dumps(saved | change if change else change))
        message = "is not a certificate|has 120 classes and 120 source words, the"
        with pytest.raises(UserError, match=message):
            compare(path, of_fairseq(model))


@pytest.mark.parametrize("arch", ["transformer_lm_mixtape", "awd_lstm_lm_moc"])
def test_language_models_have_certificates_too(lm_data, tmp_path, arch):
    model = build(lm_data, arch).model.eval()
    path = written(model, tmp_path / "c.json")
    assert compare(path, of_fairseq(model)) < 5e-5
    with torch.no_grad():
        head(model).weight.mul_(1.05)
    with pytest.raises(UserError, match="another function"):
        compare(path, of_fairseq(model))


def test_commands_compare_a_certified_checkpoint(joined_data, tmp_path):
    """Generation and analysis refuse a model that was changed since `highrank model certify`."""
    train(joined_data, tmp_path, "transformer_mos", 1)
    path = shutil.copyfile(last(tmp_path), tmp_path / "model.pt")
    assert certify(path).startswith(f"{certificate_path(path)}: written")
    assert certify(path).startswith(f"{path}: computes what was certified, to ")
    assert run("generate", joined_data, "--path", path, "--max-len-b", 2).lines("H-")
    load_model(path, str(joined_data))
    state = torch.load(path)
    state["model"]["decoder.output_projection.prior.weight"] *= 1.1
    torch.save(state, path)
    message = r"model\.certificate\.json: the model computes another function"
    for data in (str(joined_data), None):
        with pytest.raises(UserError, match=message):
            load_model(path, data)
    with pytest.raises(UserError, match=message):
        certify(path)
    failed = attempt("generate", joined_data, "--path", path)
    assert failed.code == 2
    assert "model.certificate.json: the model computes another function" in failed.output
