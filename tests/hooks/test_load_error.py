"""Test hooks/load_error.py."""

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.trainer import Trainer

from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import run_training, translation_options

REASON = "other sizes; use the options of that training run"
GENERIC = "Cannot load model parameters"


@pytest.fixture
def refusing(monkeypatch):
    """Make models refuse every checkpoint."""

    def refuse(self, state_dict, name):
        raise ValueError(REASON)

    monkeypatch.setattr(TransformerModel, "upgrade_state_dict_named", refuse)


@pytest.fixture(params=["--restore-file", "--finetune-from-model"])
def start(request, translator):
    return [request.param, translator]


def test_the_reason_comes_last(data, translator, start, tmp_path, refusing):
    with pytest.raises(ValueError) as raised:
        run_training(data, tmp_path, *translation_options(), *start)
    assert str(raised.value) == f"{translator}: {REASON}"


def test_stock_replaces_the_reason(data, start, tmp_path, refusing, stock):
    stock(Trainer, "load_checkpoint")
    with pytest.raises(Exception, match=GENERIC):
        run_training(data, tmp_path, *translation_options(), *start)


def test_parameters_that_do_not_fit_are_explained(data, translator, start, tmp_path):
    wide = translation_options(**{"--encoder-ffn-embed-dim": 16})
    with pytest.raises(
        UserError, match=f"^{translator} does not fit .*size mismatch for"
    ) as raised:
        run_training(data, tmp_path, *wide, *start)
    assert "\n" not in str(raised.value)


def test_a_model_that_cannot_be_built_is_named(translator, tmp_path):
    state = torch.load(translator, weights_only=True)
    state["cfg"]["model"].encoder_layers = "many"
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(UserError, match=r"odd\.pt describes a model that cannot .*TypeError"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "odd.pt")])


def test_a_checkpoint_that_fits_is_loaded(data, translator, tmp_path):
    options = translation_options(**{"--max-update": 3})
    state = run_training(data, tmp_path, *options, "--restore-file", translator)
    assert state["optimizer_history"][-1]["num_updates"] == 3
