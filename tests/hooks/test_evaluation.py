"""Evaluations score all of the data, or say what is left out."""

import json
import logging
import math
import re

import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary, data_utils
from fairseq_cli import eval_lm

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import evaluation
from tests.compat.conftest import SIZES, config, evaluate, train
from tests.fairseq_cli import run
from tests.stream_corpus import train_streams
from tests.trainings import last

SKIP = "--skip-invalid-size-inputs-valid-test"
SHORT = ["--max-source-positions", 6, "--max-target-positions", 6]
LIMITS = '{"max_source_positions": 6, "max_target_positions": 6}'


@pytest.fixture
def logged():
    """Return what the module logs; fairseq-validate removes the handlers of the root."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    evaluation.logger.addHandler(handler)
    evaluation.logger.setLevel(logging.INFO)
    yield messages
    evaluation.logger.removeHandler(handler)
    evaluation.logger.setLevel(logging.NOTSET)


BOTH = pytest.mark.parametrize(
    ("command", "words", "limits"),
    [("generate", ["--gen-subset", "valid"], {}), ("validate", [], json.loads(LIMITS))],
)


@BOTH
def test_samples_are_counted_and_those_left_out_named(
    command, words, limits, data, translator, logged, stock
):
    evaluate(command, data, translator, *words)
    lines = [line.split() for line in (data.parent / "valid.xx").read_text().splitlines()]
    assert f"valid: scores {len(lines)} of {len(lines)} samples" in logged
    lost = [index for index, words in enumerate(lines) if len(words) > 5]
    assert 0 < len(lost) < len(lines)
    start = f"valid: {len(lost)} of {len(lines)} samples are not scored; the first are {lost[:10]}"
    with pytest.raises(UserError) as ended:
        short = [] if limits else SHORT
        evaluate(command, data, translator, *words, *short, SKIP, **limits)
    assert str(ended.value).startswith(start)
    assert f"{SKIP} leaves samples out" in str(ended.value)
    stock(data_utils, "batch_by_size")  # drops the last batches
    with pytest.raises(ValueError, match=r"valid: \d of 13 samples are not scored; the first are"):
        evaluate(command, data, translator, *words)


def test_a_part_of_a_text_is_reported_as_such_and_may_be_empty(data, translator, logged):
    options = ["--gen-subset", "valid", "--batch-size", 1, "--distributed-world-size"]
    for parts, rank in (2, 0), (2, 1), (14, 13):
        evaluate("generate", data, translator, *options, parts, "--distributed-rank", rank)
        said = f"valid: this is part {rank + 1} of {parts}. All parts together must score 13"
        assert logged[-1] == said
    with pytest.raises(UserError, match=f"13 of 13 samples are not scored.* {SKIP} leaves"):
        evaluate("generate", data, translator, SKIP, "--max-source-positions", 1)


def test_interactive_prints_a_line_for_each_line_of_input(data, translator):
    lines = (data.parent / "valid.xx").read_text().splitlines()
    words = [data, "--path", translator, "--cpu", "-s", "xx", "-t", "yy", "--buffer-size", 5]
    words += ["--batch-size", 5, "--max-len-b", 5, SKIP, *SHORT]
    done = run("interactive", *words, stdin="\n".join(lines) + "\n")
    hypotheses = [line.split("\t") for line in done.lines("H-")]
    assert [name for name, *_ in hypotheses] == [f"H-{index}" for index in range(len(lines))]
    for line, (_, score, text) in zip(lines, hypotheses, strict=True):
        if len(line.split()) > 5:
            assert (score, text) == ("-inf", "")
            assert f"the line {line[:60]!r} has {len(line.split()) + 1} tokens" in done.output
        else:
            assert math.isfinite(float(score))


def test_a_broken_model_is_not_validated(data, translator, tmp_path):
    state = torch.load(translator)
    state["model"]["decoder.output_projection.weight"].fill_(math.nan)
    torch.save(state, tmp_path / "broken.pt")
    with pytest.raises(FloatingPointError, match=r"the loss of the batch with samples \["):
        evaluate("validate", data, tmp_path / "broken.pt")


def test_streams_count_tokens(stream_data, tmp_path):
    train_streams(stream_data, tmp_path, "--max-update", 1)
    where = [stream_data, "--path", last(tmp_path), "--task", "bptt_language_modeling"]
    scored = run("eval-lm", *where, "--gen-subset", "valid").output
    validated = run("validate", *where, "--batch-size", 1).output
    line = re.search(r"valid: [\d,]+ tokens in 1 stream of .*", scored)[0]
    assert line in validated


def test_a_validation_on_a_part_of_the_batches_is_said_once(data, tmp_path, caplog):
    train(data, tmp_path, max_valid_steps=1, validate_interval_updates=1, batch_size_valid=3)
    part = "--max-valid-steps 1 validates on the first 2 of 5 batches"
    assert caplog.text.count(part) == 1


def run_eval_lm(data, path, *options) -> dict:
    return evaluate("eval-lm", data / "lm", path, *options)


def test_what_a_language_model_cannot_score_is_refused(data, language_model, tmp_path, logged):
    size = ["--tokens-per-sample", 16]
    for words, message in (
        ([], r"--tokens-per-sample \(now 1024\) to at most 16"),
        (["--tokens-per-sample", 17], "blocks are longer"),
        ([*size, "--post-process", "letter"], "--post-process letter would join nothing here"),
        ([*size, "--post-process", "@@ "], "--post-process @@  would join nothing here"),
    ):
        with pytest.raises(UserError, match=message):
            run_eval_lm(data, language_model, *words)
    state = torch.load(language_model)
    kept, state["task_state"] = state["task_state"], {"carries_state": True}
    torch.save(state, tmp_path / "streams.pt")
    with pytest.raises(ValueError, match="add --task bptt_language_modeling"):
        run_eval_lm(data, tmp_path / "streams.pt", *size)
    state["task_state"] = kept
    state["model"]["decoder.output_projection.weight"].fill_(math.nan)
    torch.save(state, tmp_path / "broken.pt")
    with pytest.raises(FloatingPointError, match=r"in the batch of sentences .* NaN"):
        run_eval_lm(data, tmp_path / "broken.pt", *size)
    with pytest.raises(UserError, match="test: no sample can be scored, because the data are em"):
        evaluation._Split([], "test").check([], False, 0, 1)
    tokens = len((data.parent / "test.yy").read_text().split()) + SIZES["test"]
    assert f"test: scores {(blocks := -(-tokens // 16))} of {blocks} samples" in logged


@pytest.mark.parametrize(("name", "context"), [("subword_nmt", 0), ("@@ ", 4)])
def test_means_are_per_word_where_pieces_are_joined(
    data, language_model, monkeypatch, caplog, name, context
):
    options = ["--tokens-per-sample", 16, "--context-window", context]
    per_piece = run_eval_lm(data, language_model, *options)["loss"]
    stock = eval_lm.eval_lm

    def with_pieces(source_dictionary, **kwargs):
        source_dictionary.symbols[::3] = [f"{word}@@" for word in source_dictionary.symbols[::3]]
        return stock(source_dictionary=source_dictionary, **kwargs)

    monkeypatch.setattr(eval_lm, "eval_lm", with_pieces)
    caplog.set_level("INFO")
    per_word = run_eval_lm(data, language_model, *options, "--post-process", name)["loss"]
    words = int(re.search(r"means over ([\d,]+) words", caplog.text)[1].replace(",", ""))
    pieces = int(re.search(r"Evaluated ([\d,]+) tokens", caplog.text)[1].replace(",", ""))
    assert words < pieces
    assert per_word * words == pytest.approx(per_piece * pieces, rel=1e-5)


@pytest.mark.parametrize(("form", "said"), [("{}@@", True), ("▁{}", True), ("@{}", False)])
def test_it_is_said_that_a_dictionary_holds_pieces(data, monkeypatch, caplog, form, said):
    stock = Dictionary.add_from_file

    def add(dictionary, file):
        stock(dictionary, file)
        vars(dictionary).pop("read_from", None)  # it is compared with the file
        dictionary.symbols[4:] = [form.format(word) for word in dictionary.symbols[4:]]

    monkeypatch.setattr(Dictionary, "add_from_file", add)
    caplog.set_level("INFO")
    tasks.setup_task(config("eval_lm", data / "lm", "--path", "x").task)
    assert ("the dictionary holds pieces of words" in caplog.text) == said
