"""hooks/checkpoint_dictionary.py: two swapped words are refused wherever a dictionary is read."""

import logging
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
from tests.fairseq_cli import attempt
from tests.stream_corpus import LOSS, SHAPE, STREAMS, binarise, train_streams, write_text
from tests.trainings import last

MESSAGE = "the {} dictionary .* is not the dictionary that the checkpoint was trained with"
CPU = ["--cpu", "--num-workers", 0]
LANGUAGE_MODEL = ["--task", "language_modeling", "--arch", "transformer_lm", *DECODER]
LANGUAGE_MODEL += ["--tokens-per-sample", 16, "--max-tokens", 64, "--max-update", 3]


def swap_words(dictionary: Path) -> None:
    """Put the first two words in another order; their numbers in the text stay."""
    first, second, *words = dictionary.read_text().splitlines()
    dictionary.write_text("\n".join([second, first, *words]) + "\n")


def swapped(data: Path, folder: Path, *names: str) -> Path:
    """Copy binarised data, and swap words in these dictionaries."""
    shutil.copytree(data, folder)
    for name in names:
        swap_words(folder / name)
    return folder


@pytest.fixture(params=["source", "target"])
def other_data(request, data, tmp_path):
    """Return data with one dictionary changed, and a pattern of the refusal."""
    name = {"source": "dict.xx.txt", "target": "dict.yy.txt"}[request.param]
    return swapped(data, tmp_path / "other", name), MESSAGE.format(request.param)


@pytest.fixture
def other_text(data, tmp_path):
    """Return the data of the language model with its dictionary changed."""
    return swapped(data / "lm", tmp_path / "other", "dict.txt")


def run_generate(data, path, *options):
    return generate.main(config("generation", data, "--path", path, *CPU, *options))


def test_commands_compare_dictionaries(other_data, translator):
    folder, message = other_data
    typed = config("interactive_generation", folder, "--path", translator, *CPU, "-s", "xx")
    line = [folder, "--task", "translation", "--path", translator, *CPU, "--max-tokens", 60]
    overrides = Namespace(data=str(folder))
    for command in (
        lambda: run_generate(folder, translator),
        lambda: interactive.main(typed),
        lambda: validate.main(config("validation", *line), override_args=overrides),
    ):
        with pytest.raises(ValueError, match=message):
            command()


def test_evaluation_of_a_language_model_compares_dictionaries(other_text, language_model):
    args = config("eval_lm", other_text, "--path", language_model, *CPU)
    with pytest.raises(ValueError, match=MESSAGE.format("target")):
        eval_lm.main(args)


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_compares_dictionaries(option, other_data, translator, tmp_path):
    folder, message = other_data
    line = [*translation_options(), option, translator]
    with pytest.raises(ValueError, match=f"{translator}: {message}"):
        run_training(folder, tmp_path / "new", *line)


def test_analysis_compares_dictionaries(other_text, language_model, data):
    with pytest.raises(ValueError, match=f"{language_model}: {MESSAGE.format('target')}"):
        load_model(language_model, str(other_text))
    shutil.copy(data / "lm" / "dict.txt", other_text)
    words = [line.split()[0] for line in (other_text / "dict.txt").read_text().splitlines()]
    (other_text / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    load_model(language_model, str(other_text))  # counts do not matter


def test_a_checkpoint_without_hashes_loads_with_one_warning(
    other_text, language_model, tmp_path, caplog
):
    state = torch.load(language_model)
    del state["task_state"]["dictionaries"]
    torch.save(state, tmp_path / "old.pt")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_model(tmp_path / "old.pt", str(other_text))
    assert len([text for text in caplog.messages if "no hash of its dictionary" in text]) == 1


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
    folder = swapped(data, tmp_path / "both")
    shutil.copy(other_text / "dict.txt", folder / "dict.txt")
    fusion = ["--lm-weight", 0.1, "--lm-path"]
    with pytest.raises(ValueError, match="--lm-path: the dictionary of the language model"):
        run_generate(folder, translator, *fusion, tmp_path / "lm" / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="--lm-path: this checkpoint has an encoder"):
        run_generate(data, translator, *fusion, translator)


def test_streams_of_another_dictionary_are_neither_finetuned_nor_resumed(tmp_path):
    data = binarise(write_text(tmp_path))
    train_streams(data, tmp_path / "old", "--max-update", 2)
    path = last(tmp_path / "old")
    swap_words(data / "dict.txt")
    for words in ["--finetune-from-model"], ["--reset-dataloader", "--restore-file"]:
        where = [data, "--arch", "awd_lstm_lm_softmax", "--save-dir", tmp_path / "new"]
        done = attempt("train", *where, *SHAPE, *LOSS, *STREAMS, "--max-update", 3, *words, path)
        assert done.code == 2
        assert done.output.splitlines()[-1].startswith(
            f"fairseq-train: error: {path}: the target dictionary"
        )
