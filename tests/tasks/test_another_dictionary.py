"""A checkpoint belongs to the dictionary it was trained with, also to one of the same size."""

import pytest

from tests.fairseq_cli import attempt
from tests.stream_corpus import LOSS, SHAPE, STREAMS, binarise, train_streams, write_text
from tests.tasks.built import build
from tests.trainings import last

MESSAGE = "dict.txt is not the dictionary that the checkpoint was trained with"


def swap_words(data):
    """The same words, the first two in another order; their numbers in the text stay."""
    first, second, *words = (data / "dict.txt").read_text().splitlines()
    (data / "dict.txt").write_text("\n".join([second, first, *words]) + "\n")


def test_it_is_not_evaluated(tmp_path):
    data = binarise(write_text(tmp_path))
    saved = build(data).task.state_dict()
    swap_words(data)
    with pytest.raises(ValueError, match=MESSAGE):
        build(data).task.load_state_dict(saved)


def test_it_is_neither_finetuned_nor_resumed(tmp_path):
    data = binarise(write_text(tmp_path))
    train_streams(data, tmp_path / "old", "--max-update", 2)
    path = last(tmp_path / "old")
    swap_words(data)
    starts = ["--finetune-from-model"], ["--reset-dataloader", "--restore-file"], ["--restore-file"]
    for words in starts:
        where = [data, "--arch", "awd_lstm_lm_softmax", "--save-dir", tmp_path / "new"]
        done = attempt("train", *where, *SHAPE, *LOSS, *STREAMS, "--max-update", 3, *words, path)
        assert done.code == 1
        assert done.output.splitlines()[-1].startswith(f"ValueError: {path}: {MESSAGE}")
