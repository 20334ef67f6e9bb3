"""hooks/checkpoint_dictionary.py: two swapped words are refused wherever a dictionary is read."""

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import tasks
from fairseq_cli import eval_lm, generate, interactive, validate

from highrank_plugins.common.user_error import UserError
from highrank_plugins.inference.loading import load_model
from tests.compat.conftest import DECODER, config, run_training, translation_options

MESSAGE = "the {} dictionary .* is not the dictionary that the checkpoint was trained with"
CPU = ["--cpu", "--num-workers", 0]
LANGUAGE_MODEL = ["--task", "language_modeling", "--arch", "transformer_lm", *DECODER]
LANGUAGE_MODEL += ["--tokens-per-sample", 16, "--max-tokens", 64, "--max-update", 3]


def swap_words(dictionary: Path) -> None:
    """Put the first two words in another order; their numbers in the text stay."""
    first, second, *words = dictionary.read_text().splitlines()
    dictionary.write_text("\n".join([second, first, *words]) + "\n")


@pytest.fixture(params=["source", "target"])
def other_data(request, data, tmp_path):
    """Return data with one dictionary changed, and a pattern of the refusal."""
    other = shutil.copytree(data, tmp_path / "other")
    swap_words(other / {"source": "dict.xx.txt", "target": "dict.yy.txt"}[request.param])
    return other, MESSAGE.format(request.param)


@pytest.fixture
def other_text(data, tmp_path):
    """Return the data of the language model with its dictionary changed."""
    other = shutil.copytree(data / "lm", tmp_path / "other")
    swap_words(other / "dict.txt")
    return other


def run_generate(data, path, *options):
    return generate.main(config("generation", data, "--path", path, *CPU, *options))


def test_commands_compare_dictionaries(other_data, translator, tmp_path):
    folder, message = other_data
    typed = config("interactive_generation", folder, "--path", translator, *CPU, "-s", "xx")
    line = [folder, "--task", "translation", "--path", translator, *CPU, "--max-tokens", 60]
    overrides = Namespace(data=str(folder))

    def train(option):
        run_training(folder, tmp_path / "new", *translation_options(), option, translator)

    for command in (
        lambda: run_generate(folder, translator),
        lambda: interactive.main(typed),
        lambda: validate.main(config("validation", *line), override_args=overrides),
        lambda: train("--restore-file"),
        lambda: train("--finetune-from-model"),
    ):
        with pytest.raises(ValueError, match=f"{translator}: {message}"):
            command()


def test_commands_on_a_language_model_compare_dictionaries(other_text, language_model, data):
    args = config("eval_lm", other_text, "--path", language_model, *CPU)
    for command in lambda: eval_lm.main(args), lambda: load_model(language_model, str(other_text)):
        with pytest.raises(ValueError, match=f"{language_model}: {MESSAGE.format('target')}"):
            command()
    shutil.copy(data / "lm" / "dict.txt", other_text)
    words = [line.split()[0] for line in (other_text / "dict.txt").read_text().splitlines()]
    (other_text / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    load_model(language_model, str(other_text))  # counts do not matter


def test_a_checkpoint_of_fairseq_0_10_is_read_with_a_warning(
    other_data, translator, tmp_path, caplog
):
    state = torch.load(translator)
    state |= {"args": state["cfg"]["model"], "cfg": None}  # its model keeps all options in one
    del state["task_state"]
    path = tmp_path / "old.pt"
    torch.save(state, path)
    run_generate(other_data[0], path)
    more = translation_options(**{"--max-update": 3})
    run_training(other_data[0], tmp_path / "new", *more, "--restore-file", path)
    assert [text[:20] for text in caplog.messages if "no hash of its" in text] == [str(path)[:20]]


def test_a_model_of_the_other_direction_is_refused(data, translator):
    task = tasks.setup_task(config("generation", data, "--path", translator, *CPU).task)
    state = torch.load(translator)["task_state"]
    task.load_state_dict(state)
    assert state["languages"] == ["xx", "yy"]
    assert state["dictionaries"].keys() == {"source", "target"}
    task.cfg.source_lang, task.cfg.target_lang = "yy", "xx"
    with pytest.raises(UserError, match="-s yy -t xx: the model translates xx to yy"):
        task.load_state_dict(state | {"dictionaries": task.state_dict()["dictionaries"]})


def test_another_model_is_refused_as_a_language_model(data, other_text, translator, tmp_path):
    run_training(other_text, tmp_path / "lm", *LANGUAGE_MODEL)
    folder = shutil.copytree(data, tmp_path / "both")
    shutil.copy(other_text / "dict.txt", folder / "dict.txt")
    fusion = ["--lm-weight", 0.1, "--lm-path"]
    with pytest.raises(ValueError, match="--lm-path: the dictionary of the language model"):
        run_generate(folder, translator, *fusion, tmp_path / "lm" / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="--lm-path: this checkpoint has an encoder"):
        run_generate(data, translator, *fusion, translator)
