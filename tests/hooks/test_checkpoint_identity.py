"""A checkpoint of another model or dictionary, or one that cannot be built, is refused by name."""

import copy
import shutil

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import interactive

from highrank_plugins.common.user_error import UserError
from highrank_plugins.inference.loading import load_model
from tests.compat.conftest import MODELING, config, evaluate, run_training, train, updates
from tests.hooks.conftest import listen, swap_words

WEIGHT = "decoder.output_projection.weight"


@pytest.mark.parametrize("option", ["restore_file", "finetune_from_model"])
@pytest.mark.parametrize("owner", [TransformerModel, TranslationTask, None])
def test_a_refusal_of_model_or_task_comes_last(
    owner, option, data, translator, tmp_path, monkeypatch
):
    def refuse(self, *_):
        raise ValueError("another meaning")

    if owner:
        listen(monkeypatch, owner, check_saved_options=refuse)
    else:
        monkeypatch.setattr(TransformerModel, "upgrade_state_dict_named", refuse)
    read = checkpoint_utils.load_checkpoint_to_cpu
    with pytest.raises(ValueError) as raised:
        train(data, tmp_path, **{option: translator})
    assert str(raised.value) == f"{translator}: another meaning"
    assert checkpoint_utils.load_checkpoint_to_cpu is read
    if owner is TransformerModel:  # for generation, too
        with pytest.raises(ValueError, match="another meaning"):
            checkpoint_utils.load_model_ensemble_and_task([str(translator)])


def test_a_checkpoint_holds_what_the_function_depends_on_and_the_next_run_sees_it(
    data, translator, tmp_path, monkeypatch
):
    seen = []
    for model in TransformerLanguageModel, TransformerModel:  # the second is a legacy model
        listen(monkeypatch, model, check_saved_options=lambda self, options: seen.append(options),
               function_options=lambda self: {"head_softcap_c": 30.0})  # fmt: skip
    for bound in 1, 2:
        run_training(data / "lm", tmp_path / "lm", *MODELING, "--max-update", bound)
    assert updates(train(data, tmp_path / "mt", max_update=3, restore_file=translator)) == 3
    (one, other), layer = seen, "head_softcap_c"
    assert (one["decoder_embed_dim"], one[layer], other["encoder_layers"]) == (8, 30, 1)


def test_a_model_that_cannot_be_built_is_named(data, translator, tmp_path):
    state = torch.load(translator, weights_only=True)
    state["cfg"]["model"].encoder_layers = "many"
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(UserError, match=r"odd\.pt describes a model that cannot .*TypeError"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "odd.pt")])
    state = checkpoint_utils.load_checkpoint_to_cpu(str(translator))
    state["cfg"].model._name = state["cfg"].model.arch = "transformer_unheard"
    with pytest.raises(ValueError, match="transformer_unheard is unknown here; pass the --user"):
        checkpoint_utils.load_model_ensemble_and_task([str(translator)], state=state)
    with pytest.raises(UserError, match=f"^{translator} does not fit .*size mismatch") as raised:
        train(data, tmp_path, restore_file=translator, encoder_ffn_embed_dim=16)
    assert "\n" not in str(raised.value)


def test_what_a_checkpoint_leaves_without_values_is_not_evaluated(data, tmp_path):
    """Another head than that of the training run begins with random numbers."""
    train(data, tmp_path, arch="transformer_softmax", criterion="highrank_cross_entropy")
    where, message = tmp_path / "checkpoint_last.pt", r"holds no values of .*\.latent\.weight"
    with pytest.raises(UserError, match=message):
        evaluate("validate", data, where, head="mos")
    for command in "generate", "validate":
        evaluate(command, data, where, *["--max-tokens", 300] * (command == "generate"))
    with pytest.raises(UserError, match=message):
        evaluate("generate", data, where, "--model-overrides", "{'head': 'mos'}")


@pytest.mark.parametrize(
    ("what", "words", "message"),
    [
        ("weights", ["--restore-file"], f"first weight {WEIGHT}, "),
        ("weights", ["--finetune-from-model"], f"first weight {WEIGHT}, "),
        ("moments", [], "moment exp_avg_sq of parameter 1, .*move this one.*add --reset-optim"),
        ("averages", ["--store-ema", "--allow-changed-options", "--restore-file"],
         f"first average {WEIGHT}, "),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(data, translator, tmp_path, what, words, message):
    broken = tmp_path / ("broken.pt" if words else "checkpoint_last.pt")
    state = torch.load(translator, weights_only=True)
    state["extra_state"]["ema"] = copy.deepcopy(state["model"])
    spoilt = {
        "weights": state["model"][WEIGHT],
        "moments": state["last_optimizer_state"]["state"][1]["exp_avg_sq"],
        "averages": state["extra_state"]["ema"][WEIGHT],
    }
    spoilt[what].view(-1)[5] = torch.nan
    torch.save(state, broken)
    folder = tmp_path / "saved" if words else tmp_path
    words += [broken] if words else []
    with pytest.raises(UserError, match=f"^{broken}: .*{message}"):
        train(data, folder, *words, max_update=4)
    assert not list(tmp_path.glob("saved/*.pt"))
    if what == "moments":
        train(data, folder, *words, "--reset-optimizer", max_update=4)


MESSAGE = "the {} dictionary .* is not the dictionary that the checkpoint was trained with"


@pytest.fixture
def other_text(data, tmp_path):
    """Return the data of the language model with its dictionary changed."""
    other = shutil.copytree(data / "lm", tmp_path / "other")
    swap_words(other / "dict.txt")
    return other


@pytest.mark.parametrize(("side", "language"), [("source", "xx"), ("target", "yy")])
def test_commands_compare_dictionaries(side, language, data, translator, tmp_path, caplog):
    folder = shutil.copytree(data, tmp_path / "other")
    swap_words(folder / f"dict.{language}.txt")
    # a checkpoint of fairseq 0.10 is read with a warning; its model keeps all options in one
    state, path = torch.load(translator), tmp_path / "old.pt"
    state |= {"args": state["cfg"]["model"], "cfg": None}
    del state["task_state"]
    torch.save(state, path)
    evaluate("generate", folder, path)
    train(folder, tmp_path / "old", max_update=3, restore_file=path)
    assert [text[:20] for text in caplog.messages if "no hash of its" in text] == [str(path)[:20]]
    typed = config("interactive_generation", folder, "--path", translator, "--cpu", "-s", "xx")
    for command in (
        lambda: evaluate("generate", folder, translator),
        lambda: interactive.main(typed),
        lambda: evaluate("validate", folder, translator),
        lambda: train(folder, tmp_path / "new", restore_file=translator),
        lambda: train(folder, tmp_path / "new", finetune_from_model=translator),
    ):
        with pytest.raises(ValueError, match=f"{translator}: {MESSAGE.format(side)}"):
            command()


def test_commands_on_a_language_model_compare_dictionaries(other_text, language_model, data):
    for command in (
        lambda: evaluate("eval-lm", other_text, language_model),
        lambda: load_model(language_model, str(other_text)),
    ):
        with pytest.raises(ValueError, match=f"{language_model}: {MESSAGE.format('target')}"):
            command()
    words = [line.split()[0] for line in (data / "lm" / "dict.txt").read_text().splitlines()]
    (other_text / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    load_model(language_model, str(other_text))  # counts do not matter


def test_a_model_of_the_other_direction_is_refused(data, translator):
    task = tasks.setup_task(config("generation", data, "--path", translator).task)
    state = torch.load(translator)["task_state"]
    task.load_state_dict(state)
    assert state["languages"] == ["xx", "yy"]
    assert state["dictionaries"].keys() == {"source", "target"}
    task.cfg.source_lang, task.cfg.target_lang = "yy", "xx"
    with pytest.raises(UserError, match="-s yy -t xx: the model translates xx to yy"):
        task.load_state_dict(state | {"dictionaries": task.state_dict()["dictionaries"]})


def test_another_model_is_refused_as_a_language_model(data, other_text, translator, tmp_path):
    run_training(other_text, tmp_path / "lm", *MODELING, "--max-update", 3)
    folder = shutil.copytree(data, tmp_path / "both")
    shutil.copy(other_text / "dict.txt", folder / "dict.txt")
    fusion = ["--lm-weight", 0.1, "--lm-path"]
    with pytest.raises(ValueError, match="--lm-path: the dictionary of the language model"):
        evaluate("generate", folder, translator, *fusion, tmp_path / "lm" / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="--lm-path: this checkpoint has an encoder"):
        evaluate("generate", data, translator, *fusion, translator)
