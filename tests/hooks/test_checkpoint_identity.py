"""A checkpoint of another model, one that cannot be built, or has diverged, is refused by name."""

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks.translation import TranslationTask

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.trainer import not_finite
from tests.compat.conftest import DECODER, run_training, translation_options
from tests.hooks.conftest import listen

CHECK = "check_saved_options"
WEIGHT = "decoder.output_projection.weight"
MODELING = ["--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 16]
MODELING += [*DECODER, "--max-tokens", 64]
start = pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])


def refuse(self, *_):
    raise ValueError("another meaning")


@start
@pytest.mark.parametrize(
    ("owner", "event"),
    [(TransformerModel, CHECK), (TranslationTask, CHECK),
     (TransformerModel, "upgrade_state_dict_named")],
)  # fmt: skip
def test_a_refusal_of_model_or_task_comes_last(
    owner, event, option, data, translator, tmp_path, monkeypatch
):
    if event == CHECK:
        listen(monkeypatch, owner, **{CHECK: refuse})
    else:
        monkeypatch.setattr(owner, event, refuse)
    read = checkpoint_utils.load_checkpoint_to_cpu
    with pytest.raises(ValueError) as raised:
        run_training(data, tmp_path, *translation_options(), option, translator)
    assert str(raised.value) == f"{translator}: another meaning"
    assert checkpoint_utils.load_checkpoint_to_cpu is read
    if owner is TransformerModel:  # for generation, too
        with pytest.raises(ValueError, match="another meaning"):
            checkpoint_utils.load_model_ensemble_and_task([str(translator)])


@start
def test_parameters_that_do_not_fit_are_explained(data, translator, option, tmp_path):
    wide = translation_options(**{"--encoder-ffn-embed-dim": 16})
    message = f"^{translator} does not fit .*size mismatch for"
    with pytest.raises(UserError, match=message) as raised:
        run_training(data, tmp_path, *wide, option, translator)
    assert "\n" not in str(raised.value)


def test_a_model_sees_options_by_name(data, language_model, translator, tmp_path, monkeypatch):
    seen = []
    for model in TransformerLanguageModel, TransformerModel:  # the second is a legacy model
        listen(monkeypatch, model, check_saved_options=lambda self, options: seen.append(options))
    words = [*MODELING, "--max-update", 3, "--restore-file", language_model]
    run_training(data / "lm", tmp_path / "lm", *words)
    words = [*translation_options(**{"--max-update": 3}), "--restore-file", translator]
    state = run_training(data, tmp_path / "mt", *words)
    assert seen[0]["decoder_embed_dim"] == 8 and [o["encoder_layers"] for o in seen[1:]] == [1]
    assert state["optimizer_history"][-1]["num_updates"] == 3


def test_a_model_that_cannot_be_built_is_named(translator, tmp_path):
    state = torch.load(translator, weights_only=True)
    state["cfg"]["model"].encoder_layers = "many"
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(UserError, match=r"odd\.pt describes a model that cannot .*TypeError"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "odd.pt")])
    state = checkpoint_utils.load_checkpoint_to_cpu(str(translator))
    state["cfg"].model._name = state["cfg"].model.arch = "transformer_unheard"
    with pytest.raises(ValueError, match="transformer_unheard is unknown here; pass the --user"):
        checkpoint_utils.load_model_ensemble_and_task([str(translator)], state=state)


def test_a_checkpoint_holds_what_the_function_depends_on(data, tmp_path, monkeypatch):
    function = {"head_softcap_c": 30.0}
    listen(monkeypatch, TransformerLanguageModel, function_options=lambda self: function)
    run_training(data / "lm", tmp_path, *MODELING, "--max-update", 2)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    assert state["cfg"].model.head_softcap_c == 30


def spoil(state: dict, what: str) -> dict:
    if what == "weights":
        state["model"][WEIGHT][5, 0] = torch.nan
    elif what == "moments":
        state["last_optimizer_state"]["state"][1]["exp_avg_sq"].view(-1)[0] = torch.inf
    else:
        averages = {name: value.clone() for name, value in state["model"].items()}
        averages[WEIGHT][5, 0] = torch.nan
        state["extra_state"]["ema"] = averages
    return state


EMA = ["--store-ema", "--allow-changed-options"]


@pytest.mark.parametrize(
    ("what", "words", "message"),
    [
        ("weights", ["--restore-file"], f"NaN or infinite .{WEIGHT}.*--lr$"),
        ("weights", ["--finetune-from-model"], f"NaN or infinite .{WEIGHT}.*--lr$"),
        ("weights", [], "move this one away"),
        ("moments", [], r"moments .*exp_avg_sq of parameter 1.*--reset-optimizer"),
        ("averages", [*EMA, "--restore-file"], f"averages .*{WEIGHT}.*--store-ema"),
    ],
)
def test_bad_numbers_are_refused(data, translator, tmp_path, what, words, message):
    broken = tmp_path / ("broken.pt" if words else "checkpoint_last.pt")
    torch.save(spoil(torch.load(translator, weights_only=True), what), broken)
    folder = tmp_path / "saved" if words else tmp_path
    words = [*translation_options(**{"--max-update": 4}), *words, *([broken] if words else [])]
    with pytest.raises(UserError, match=f"^{broken}: .*{message}"):
        run_training(data, folder, *words)
    assert not list(tmp_path.glob("saved/*.pt"))
    if what == "moments":
        run_training(data, folder, *words, "--reset-optimizer")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_large_numbers_are_finite(dtype, bad):
    tensors = {"empty": torch.empty(0), "large": torch.zeros(2, 3, dtype=dtype)}
    tensors["large"][0, 0] = torch.finfo(dtype).max
    tensors["large"][1, 2] = torch.finfo(dtype).min
    assert not_finite(tensors) == []
    tensors["large"][1, 1] = bad
    assert not_finite(tensors) == ["large"]
    assert not_finite({}) == []
