"""Dialogues: both forms of the corpus, what is refused with its place, and a line each."""

import json

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.dialogue import (
    Counts,
    Utterance,
    input_files,
    read_corpus,
    read_references,
    words_of,
    write_parallel,
)
from tests.dialogue_corpus import (
    PICKLE,
    SIZES,
    corpus,
    references,
    write_json_lines,
    write_pickle,
    write_references,
)

DIALOGUE = {
    "utts": [("A", "Hello!", []), ("A", "who is it", []), ("B", "it's me", []), ("A", "oh", [])]
}


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture
def small(tmp_path):
    """Write a corpus of three times the same dialogue."""
    write_pickle(tmp_path, {split: [DIALOGUE] for split in ("train", "valid", "test")})
    return tmp_path


def test_every_utterance_but_the_first_is_a_response(small):
    counts = write_parallel(small, small, context=2)
    assert counts == dict.fromkeys(("train", "valid", "test", "test1"), Counts(3, 3))
    assert lines(small / "train.response") == ["who is it", "it ' s me", "oh"]
    assert lines(small / "train.context") == [
        "<self> hello !",
        "<other> hello ! <other> who is it",
        "<self> who is it <other> it ' s me",
    ]


def test_utterances_that_are_left_out_are_counted(tmp_path):
    dialogue = {"utts": [("A", " ", []), *DIALOGUE["utts"], ("B", "", [])]}
    write_pickle(tmp_path, {split: [dialogue, DIALOGUE] for split in ("train", "valid", "test")})
    counts = write_parallel(tmp_path, tmp_path, context=2)
    assert counts["train"] == Counts(6, 6)
    ledger = json.loads((tmp_path / "counts.json").read_text())
    assert (
        ledger["train.response"]
        == ledger["test1.context"]
        == {
            "in": {"sentences": 10},
            "out": {"sentences": 6},
            "left out": {
                "without words": {"sentences": 2},
                "first of its dialogue": {"sentences": 2},
            },
        }
    )


def test_without_references_the_response_is_the_only_reference(small):
    write_parallel(small, small, context=9)
    for kind in ("context", "response"):
        assert lines(small / f"test1.{kind}") == lines(small / f"test.{kind}")
    assert lines(small / "test1.references") == lines(small / "test.response")
    assert lines(small / "test.context")[2] == ("<self> hello ! <self> who is it <other> it ' s me")


def test_references_become_a_test_set(small):
    entry = {
        "context": ["0-A: <s> <d> </s>", "1-B: <s> Who's there: you? </s> ", "2-A:me"],
        "speaker": "B",
        "responses": ["<s> Oh. </s>", "", "yes"],
    }
    write_references(small, [{**entry, "context": entry["context"][:1]}, entry])
    counts = write_parallel(small, small, context=9)
    ledger = json.loads((small / "counts.json").read_text())
    assert (
        ledger["test1.response"]
        == ledger["test1.context"]
        == {
            "in": {"sentences": 2},
            "out": {"sentences": 1},
            "left out": {"context without words": {"sentences": 1}},
        }
    )
    assert counts["test1"] == Counts(1, 2)
    assert counts["test"] == Counts(3, 3)
    assert lines(small / "test1.context") == ["<self> who ' s there : you ? <other> me"]
    assert lines(small / "test1.response") == ["oh ."]
    assert lines(small / "test1.references") == ["oh .\tyes"]


def test_the_invented_corpus_has_the_expected_counts(tmp_path):
    write_json_lines(tmp_path)
    path = write_references(tmp_path)
    assert input_files(tmp_path)[-1] == path
    with_context = [entry for entry in read_references(path) if entry.context]
    assert len(with_context) == len(references()) - 5  # the beginnings
    counts = write_parallel(tmp_path, tmp_path, context=3)
    for split, dialogues in corpus().items():
        assert counts[split].contexts == sum(len(d["utts"]) - 1 for d in dialogues)
    assert lines(tmp_path / "test1.context") == lines(tmp_path / "test.context")
    assert counts["test1"].references == 3 * counts["test1"].contexts
    assert with_context[0].context == [
        Utterance("A", lines(tmp_path / "test1.context")[0].split()[1:])
    ]


def test_a_split_without_responses_is_refused(tmp_path):
    dialogues = corpus() | {"valid": [{"utts": [("A", "hello", [])]}]}
    write_pickle(tmp_path, dialogues)
    with pytest.raises(ValueError, match="valid has no utterance that responds"):
        write_parallel(tmp_path, tmp_path, context=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "A: x"}, r"\[1\]: must have a list 'context'"),
        ({"speaker": "C"}, r"\[1\]: must have a list 'context', 'speaker' A or B"),
        ({"responses": ["", "<s> </s>"]}, r"\[1\]: no response has words"),
        ({"responses": []}, r"\[1\]: no response has words"),
        ({"responses": [3]}, r"\[1\]: responses: 3 must be text"),
        ({"context": ["hello"]}, r"\[1\]: context: 'hello' must be text with its speaker"),
        ({"context": [7]}, r"\[1\]: context: 7 must be text with its speaker"),
    ],
    ids=str,
)
def test_malformed_references_are_named(change, message, tmp_path):
    first, second, *_ = references()
    path = write_references(tmp_path, [first, second | change])
    with pytest.raises(UserError, match=f"{path}: {message}"):
        read_references(path)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_references_must_be_a_list(content, tmp_path):
    path = tmp_path / "test_multi_ref.json"
    path.write_text(content)
    with pytest.raises(UserError, match=str(path)):
        read_references(path)


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


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        *(({"other": 1, **some}, "the split 'train' is missing or empty")
          for some in ({"train": [], "valid": [], "test": []}, {"test": 1}, {})),
        (["train"], "holds a list"),
    ],
)  # fmt: skip
def test_pickles_without_splits_are_refused(splits, message, tmp_path):
    path = write_pickle(tmp_path, splits)
    with pytest.raises(UserError, match=f"{path}: {message}"):
        read_corpus(tmp_path)


def test_missing_files_are_named(tmp_path):
    message = f"{tmp_path} has no corpus: put {PICKLE} there, or train.jsonl, valid.jsonl"
    with pytest.raises(UserError, match=message):
        read_corpus(tmp_path)
    write_json_lines(tmp_path)
    (tmp_path / "valid.jsonl").unlink()
    with pytest.raises(UserError, match=f"{tmp_path / 'valid.jsonl'} is missing"):
        read_corpus(tmp_path)
