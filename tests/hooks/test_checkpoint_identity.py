"""Test hooks/checkpoint_identity.py."""

import pytest
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from tests.compat.conftest import DECODER, run_training, translation_options
from tests.hooks.conftest import listen

OWNERS = [TransformerModel, TranslationTask]
CHECK = "check_saved_options"


def refuse(self, saved):
    raise ValueError("another meaning")


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_the_model_and_the_task_may_refuse_a_checkpoint(
    owner, option, data, translator, tmp_path, monkeypatch
):
    listen(monkeypatch, owner, **{CHECK: refuse})
    read = checkpoint_utils.load_checkpoint_to_cpu
    with pytest.raises(ValueError) as raised:
        run_training(data, tmp_path, *translation_options(), option, translator)
    assert str(raised.value) == f"{translator}: another meaning"
    assert checkpoint_utils.load_checkpoint_to_cpu is read


@pytest.mark.parametrize("owner", OWNERS)
def test_stock_does_not_show_options_to_the_model(
    owner, data, translator, tmp_path, monkeypatch, stock
):
    stock(Trainer, "load_checkpoint")
    listen(monkeypatch, owner, **{CHECK: refuse})
    run_training(data, tmp_path, *translation_options(), "--finetune-from-model", translator)


def shown_options(owner, monkeypatch):
    """List what such a model will be shown."""
    seen = []
    listen(monkeypatch, owner, check_saved_options=lambda self, options: seen.append(options))
    return seen


def test_a_model_sees_options_by_name(data, language_model, tmp_path, monkeypatch):
    seen = shown_options(TransformerLanguageModel, monkeypatch)
    line = ["--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 16]
    more = [*DECODER, "--max-update", 3, "--max-tokens", 64]
    run_training(data / "lm", tmp_path, *line, *more, "--restore-file", language_model)
    assert [options["decoder_embed_dim"] for options in seen] == [8]


def test_a_legacy_model_sees_the_options_too(data, translator, tmp_path, monkeypatch):
    seen = shown_options(TransformerModel, monkeypatch)
    run_training(data, tmp_path, *translation_options(), "--finetune-from-model", translator)
    assert [options["encoder_layers"] for options in seen] == [1]


def test_a_model_may_refuse_a_checkpoint_for_generation_too(translator, monkeypatch):
    load = checkpoint_utils.load_model_ensemble_and_task
    listen(monkeypatch, TransformerModel, check_saved_options=refuse)
    with pytest.raises(ValueError, match="another meaning"):
        load([str(translator)])


def test_an_unknown_architecture_asks_for_its_user_dir(translator):
    state = checkpoint_utils.load_checkpoint_to_cpu(str(translator))
    state["cfg"].model._name = state["cfg"].model.arch = "transformer_unheard"
    with pytest.raises(ValueError, match="transformer_unheard is unknown here; pass the --user"):
        checkpoint_utils.load_model_ensemble_and_task([str(translator)], state=state)


def test_a_checkpoint_holds_what_the_function_depends_on(data, tmp_path, monkeypatch):
    function = {"head_softcap_c": 30.0}
    listen(monkeypatch, TransformerLanguageModel, function_options=lambda self: function)
    line = ["--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 16]
    run_training(data / "lm", tmp_path, *line, *DECODER, "--max-update", 2, "--max-tokens", 64)
    (path,) = tmp_path.glob("**/checkpoint_last.pt")
    assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"].model.head_softcap_c == 30
