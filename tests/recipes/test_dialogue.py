"""Dialogues: both forms of the corpus, what is refused with its place, and a line each."""

import json

import pytest

from highrank_plugins.cli import as_command
from highrank_plugins.common.user_error import UserError
from recipes.switchboard.dialogue import (
    Counts,
    Utterance,
    dialogue_text,
    input_files,
    read_corpus,
    read_references,
    words_of,
    write_parallel,
)
from tests.dialogue_corpus import SIZES, corpus, references, write_json_lines, write_references

DIALOGUE = {
    "utts": [("A", "Hello!", []), ("A", "who is it", []), ("B", "it's me", []), ("A", "oh", [])]
}


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture
def small(tmp_path):
    write_json_lines(tmp_path, {split: [DIALOGUE] for split in ("train", "valid", "test")})
    return tmp_path


def test_every_utterance_but_the_first_is_a_response_and_its_only_reference(small):
    counts = write_parallel(small, small, context=2)
    assert counts == dict.fromkeys(("train", "valid", "test", "test1"), Counts(3, 3))
    assert lines(small / "train.response") == ["who is it", "it ' s me", "oh"]
    assert lines(small / "train.context") == [
        "<self> hello !",
        "<other> hello ! <other> who is it",
        "<self> who is it <other> it ' s me",
    ]
    write_parallel(small, small, context=9)
    for kind in ("context", "response"):
        assert lines(small / f"test1.{kind}") == lines(small / f"test.{kind}")
    assert lines(small / "test1.references") == lines(small / "test.response")
    assert lines(small / "test.context")[2] == "<self> hello ! <self> who is it <other> it ' s me"


def ledger_of(folder, name):
    ledger = json.loads((folder / "counts.json").read_text())
    assert ledger[f"{name}.response"] == ledger[f"{name}.context"]
    entry = ledger[f"{name}.context"]
    left_out = {reason: count["sentences"] for reason, count in entry["left out"].items()}
    return entry["in"]["sentences"], entry["out"]["sentences"], left_out


def test_utterances_that_are_left_out_are_counted(tmp_path):
    dialogue = {"utts": [("A", " ", []), *DIALOGUE["utts"], ("B", "", [])]}
    write_json_lines(
        tmp_path, {split: [dialogue, DIALOGUE] for split in ("train", "valid", "test")}
    )
    counts = write_parallel(tmp_path, tmp_path, context=2)
    assert counts["train"] == Counts(6, 6)
    left_out = {"without words": 2, "first of its dialogue": 2}
    for name in ("train", "test1"):
        assert ledger_of(tmp_path, name) == (10, 6, left_out)


def test_references_become_a_test_set(small):
    entry = {
        "context": ["0-A: <s> <d> </s>", "1-B: <s> Who's there: you? </s> ", "2-A:me"],
        "speaker": "B",
        "responses": ["<s> Oh. </s>", "", "yes"],
    }
    write_references(small, [{**entry, "context": entry["context"][:1]}, entry])
    counts = write_parallel(small, small, context=9)
    assert ledger_of(small, "test1") == (2, 1, {"context without words": 1})
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


@pytest.mark.parametrize(("change", "message"), [
    ({"context": "A: x"}, r"\[1\]: must have a list 'context'"),
    ({"speaker": "C"}, r"\[1\]: must have a list 'context', 'speaker' A or B"),
    ({"responses": ["", "<s> </s>"]}, r"\[1\]: no response has words"),
    ({"responses": []}, r"\[1\]: no response has words"),
    ({"responses": [3]}, r"\[1\]: responses: 3 must be text"),
    ({"context": ["hello"]}, r"\[1\]: context: 'hello' must be text with its speaker"),
    ({"context": [7]}, r"\[1\]: context: 7 must be text with its speaker"),
    *((text, "") for text in ("", "{", "{}", "[]")),
], ids=str)  # fmt: skip
def test_malformed_references_are_named(change, message, tmp_path):
    first, second, *_ = references()
    path = write_references(tmp_path, [first, second | change] if message else [])
    if not message:
        path.write_text(change)
    with pytest.raises(UserError, match=f"{path}: {message}"):
        read_references(path)


def test_a_corpus_may_lie_in_json_data(tmp_path):
    write_json_lines(tmp_path / "a")
    write_json_lines(tmp_path / "b" / "json_data")
    first = read_corpus(tmp_path / "a")
    assert {split: len(dialogues) for split, dialogues in first.items()} == SIZES
    assert read_corpus(tmp_path / "b") == first
    speaker, text, _ = corpus()["valid"][1]["utts"][2]
    assert first["valid"][1][2] == Utterance(speaker, words_of(text))


@pytest.mark.parametrize(("utterances", "message"), [
    ([], r"test\.jsonl:4: a dialogue without utterances"),
    ([("A", "", [])], r"test\.jsonl:4: a dialogue without utterances"),
    (None, r"test\.jsonl:4: a dialogue must be a dictionary with a list 'utts'"),
    ([("A", "x", []), ("C", "y", [])], r"test\.jsonl:4: utts\[1\]: an utterance must be"),
    ([("A", 5, [])], r"test\.jsonl:4: utts\[0\]: an utterance must be"),
    (["AB"], r"test\.jsonl:4: utts\[0\]: an utterance must be"),
])  # fmt: skip
def test_malformed_dialogues_are_named(utterances, message, tmp_path):
    dialogues = corpus()
    dialogues["test"][3]["utts"] = utterances
    write_json_lines(tmp_path, dialogues)
    with pytest.raises(UserError, match=message):
        read_corpus(tmp_path)


def test_missing_files_and_bad_lines_are_named(tmp_path):
    message = f"{tmp_path} has no corpus: put train.jsonl, valid.jsonl"
    with pytest.raises(UserError, match=message):
        read_corpus(tmp_path)
    write_json_lines(tmp_path, corpus() | {"valid": [{"utts": [("A", "hello", [])]}]})
    with pytest.raises(ValueError, match="valid has no utterance that responds"):
        write_parallel(tmp_path, tmp_path, context=3)
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
    path.unlink()
    with pytest.raises(UserError, match=f"{path} is missing"):
        read_corpus(tmp_path)


def test_the_command_lists_its_input_or_writes_text_and_counts_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_references(write_json_lines(tmp_path / "corpus"))
    command = as_command(dialogue_text)
    command(["corpus"], standalone_mode=False)
    names = ["train.jsonl", "valid.jsonl", "test.jsonl", "test_multi_ref.json"]
    assert capsys.readouterr().out.splitlines() == [f"corpus/{name}" for name in names]
    command(["corpus", "out", "--context", "2"], standalone_mode=False)
    count = len((tmp_path / "out" / "test1.context").read_text().splitlines())
    assert f"test1: {count} contexts, {3 * count} references" in capsys.readouterr().out
