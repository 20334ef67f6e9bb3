"""Test compat/nan_in_generation.py."""

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import FairseqDecoder
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq_cli import generate

from highrank_plugins.compat.nan_in_generation import refuse_nan
from tests.compat.conftest import config


@pytest.fixture
def broken(translator, tmp_path):
    """Write a checkpoint whose output layer holds NaN."""
    state = torch.load(translator)
    state["model"]["decoder.output_projection.weight"][5] = float("nan")
    torch.save(state, tmp_path / "broken.pt")
    return tmp_path / "broken.pt"


def translate(data, *options):
    more = ["--cpu", "--num-workers", 0, "--beam", 2, "--max-len-b", 4, "--quiet"]
    return generate.main(config("generation", data, *more, *options))


def test_nan_is_an_error(data, broken):
    with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
        translate(data, "--path", broken)


def test_nan_in_an_ensemble_is_an_error(data, broken, translator):
    with pytest.raises(FloatingPointError, match="NaN"):
        translate(data, "--path", f"{translator}:{broken}")


@pytest.fixture
def one_nan(monkeypatch):
    """Make every model give NaN to class 5, as a mixture may."""
    sound = FairseqDecoder.get_normalized_probs

    def probabilities(decoder, *args, **kwargs):
        return sound(decoder, *args, **kwargs).index_fill(-1, torch.tensor(5), torch.nan)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", probabilities)


def test_one_nan_is_an_error(data, translator, one_nan):
    with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
        translate(data, "--path", translator)


def test_stock_translates_nan(data, translator, one_nan, stock):
    stock(EnsembleModel, "forward_decoder")
    assert translate(data, "--path", translator) is not None


def test_models_without_nan_translate(data, translator):
    assert translate(data, "--path", translator) is not None


class Fused(torch.nn.Module):
    """Return one bad output, as a language model."""

    def forward(self, tokens):
        return torch.full((*tokens.shape, 20), float("nan")), None


def test_the_language_model_is_checked_too(data, translator):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(translator)])
    generator = SequenceGenerator(models, task.target_dictionary, lm_model=Fused())
    with pytest.raises(FloatingPointError, match="--lm-path"):
        generator.lm_model(torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_infinities_are_allowed(dtype):
    scores = torch.full((3, 70_000), -3.0, dtype=dtype)
    scores[:, 1] = -torch.inf
    refuse_nan(scores, "a model")
    scores[2, 7] = torch.nan
    with pytest.raises(FloatingPointError):
        refuse_nan(scores, "a model")
