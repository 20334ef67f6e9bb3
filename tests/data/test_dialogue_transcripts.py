"""The corpus of dialogues: both of its forms, and what is refused with its place."""

import json

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.dialogue import (
    Utterance,
    read_corpus,
    words_of,
)
from tests.dialogue_corpus import PICKLE, SIZES, corpus, write_json_lines, write_pickle


def test_both_forms_give_the_same_corpus(tmp_path):
    write_pickle(tmp_path / "a")
    write_json_lines(tmp_path / "b")
    write_json_lines(tmp_path / "c" / "json_data")
    first = read_corpus(tmp_path / "a")
    assert {split: len(dialogues) for split, dialogues in first.items()} == SIZES
    assert read_corpus(tmp_path / "b") == first
    assert read_corpus(tmp_path / "c") == first
    speaker, text, _ = corpus()["valid"][1]["utts"][2]
    assert first["valid"][1][2] == Utterance(speaker, words_of(text))


def test_words_are_split_and_lowercased():
    assert words_of("Uh-huh, I  don't\tKnow.") == "uh - huh , i don ' t know .".split()
    assert words_of(" \n") == []


def test_an_utterance_may_have_no_words(tmp_path):
    dialogues = corpus()
    dialogues["test"][0]["utts"] = [("A", " ", []), ("B", "yes", [])]
    write_pickle(tmp_path, dialogues)
    assert read_corpus(tmp_path)["test"][0] == [Utterance("A", []), Utterance("B", ["yes"])]


@pytest.mark.parametrize(
    ("utterances", "message"),
    [
        ([], r"test\[3\]: a dialogue without utterances"),
        ([("A", "", [])], r"test\[3\]: a dialogue without utterances"),
        (None, r"test\[3\]: a dialogue must be a dictionary with a list 'utts'"),
        ([("A", "x", []), ("C", "y", [])], r"test\[3\]: utts\[1\]: an utterance must be"),
        ([("A", 5, [])], r"test\[3\]: utts\[0\]: an utterance must be"),
        (["AB"], r"test\[3\]: utts\[0\]: an utterance must be"),
    ],
)
def test_malformed_dialogues_are_named(utterances, message, tmp_path):
    dialogues = corpus()
    dialogues["test"][3]["utts"] = utterances
    path = write_pickle(tmp_path, dialogues)
    with pytest.raises(UserError, match=f"{path}: {message}"):
        read_corpus(tmp_path)


def test_bad_json_lines_are_named_by_their_number(tmp_path):
    write_json_lines(tmp_path)
    path = tmp_path / "valid.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], json.dumps({"utts": []}).encode() + b"\n"]))
    with pytest.raises(UserError, match=f"{path}:3: a dialogue without utterances"):
        read_corpus(tmp_path)
    for line in (b'{"utts": [', b'"\xff"', b"[" * 100_000):
        path.write_bytes(b"".join([*lines[:1], line]))
        with pytest.raises(UserError, match=f"{path}:2: not JSON"):
            read_corpus(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=f"{path}: the file is empty"):
        read_corpus(tmp_path)


@pytest.mark.parametrize("dialogues", [{"train": [], "valid": [], "test": []}, {"test": 1}, {}])
def test_missing_splits_are_named(dialogues, tmp_path):
    path = write_pickle(tmp_path, {"other": 1, **dialogues})
    with pytest.raises(UserError, match=f"{path}: the split 'train' is missing or empty"):
        read_corpus(tmp_path)


def test_a_missing_file_of_a_split_is_named(tmp_path):
    write_json_lines(tmp_path)
    (tmp_path / "valid.jsonl").unlink()
    with pytest.raises(UserError, match=f"{tmp_path / 'valid.jsonl'} is missing"):
        read_corpus(tmp_path)


def test_a_missing_corpus_says_what_to_put_where(tmp_path):
    message = f"{tmp_path} has no corpus: put {PICKLE} there, or train.jsonl, valid.jsonl"
    with pytest.raises(UserError, match=message):
        read_corpus(tmp_path)


def test_a_pickle_without_splits_is_refused(tmp_path):
    path = write_pickle(tmp_path, ["train"])
    with pytest.raises(UserError, match=f"{path}: holds a list"):
        read_corpus(tmp_path)
