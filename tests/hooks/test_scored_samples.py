"""Test hooks/scored_samples.py."""

import logging
import math
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.data import data_utils
from fairseq_cli import eval_lm, generate, validate
from torch.distributed import destroy_process_group, init_process_group

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import evaluation
from highrank_plugins.training import generation
from tests.compat.conftest import SIZES, config, run_training, translation_options
from tests.fairseq_cli import attempt, in_processes, run
from tests.free_port import free_address
from tests.stream_corpus import train_streams
from tests.trainings import last

SKIP = "--skip-invalid-size-inputs-valid-test"
SHORT = ["--max-source-positions", 6, "--max-target-positions", 6]
LIMITS = '{"max_source_positions": 6, "max_target_positions": 6}'


def run_generate(data, path, *options):
    line = [data, "--path", path, "--cpu", "--num-workers", 0, *options]
    return generate.main(config("generation", *line))


def run_validate(data, path, *options, **overrides):
    line = [data, "--task", "translation", "--path", path, "--cpu", "--num-workers", 0]
    cfg = config("validation", *line, "--max-tokens", 60, *options)
    return validate.main(cfg, Namespace(data=str(data), **overrides))


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


@pytest.fixture(params=["generate", "validate"])
def evaluate(request):
    """Return a function that evaluates; with `short` on sentences of six tokens at most."""

    def evaluate(data, path, *options, short=False):
        if request.param == "generate":
            words = ["--gen-subset", "valid", *(SHORT if short else []), *options]
            return run_generate(data, path, *words)
        limits = {"max_source_positions": 6, "max_target_positions": 6} if short else {}
        return run_validate(data, path, *options, **limits)

    return evaluate


def test_samples_are_counted_and_those_left_out_named(evaluate, data, translator, logged):
    evaluate(data, translator)
    lines = [line.split() for line in (data.parent / "valid.xx").read_text().splitlines()]
    (line,) = [text for text in logged if text.startswith("valid: scored")]
    assert line.startswith(f"valid: scored {len(lines)} of {len(lines)} samples (")
    lost = [index for index, words in enumerate(lines) if len(words) > 5]
    assert 0 < len(lost) < len(lines)
    start = f"valid: {len(lost)} of {len(lines)} samples were not scored; the first are {lost[:10]}"
    with pytest.raises(UserError) as ended:
        evaluate(data, translator, SKIP, short=True)
    assert str(ended.value).startswith(start)
    assert f"{SKIP} leaves samples out" in str(ended.value)


@pytest.mark.parametrize(
    ("command", "short", "said"),
    [
        ("generate", SHORT, ""),
        ("validate", ["--model-overrides", LIMITS], ""),
        ("generate", ["--max-source-positions", 1], "13 of 13 samples were not scored"),
    ],
)
def test_left_out_samples_end_a_command_with_one_line(command, short, said, data, translator):
    words = [data, "--path", translator, "--cpu", "--num-workers", 0, "--task", "translation", SKIP]
    done = attempt(command, *words, *short, "--max-tokens", 60)
    (line,) = done.lines(f"fairseq-{command}: error: ")
    assert f"{SKIP} leaves samples out" in line and said in line
    assert done.code == 2 and "Traceback" not in done.output


def test_a_part_without_samples_is_no_failure(data, translator):
    part = ["--distributed-world-size", SIZES["test"] + 1, "--distributed-rank", SIZES["test"]]
    done = attempt("generate", data, "--path", translator, "--cpu", "--batch-size", 1, *part)
    (line,) = [line for line in done.output.splitlines() if ": scored" in line]
    assert f"test: scored 0 of {SIZES['test']} samples" in line
    assert generation._TOTAL.search(line.encode())[1] == b"%d" % SIZES["test"]
    assert done.code == 0 and not done.lines("H-")


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


def test_a_part_of_a_text_is_reported_as_such(data, translator, logged):
    options = ["--gen-subset", "valid", "--batch-size", 4]
    for rank in (0, 1):
        part = ["--distributed-world-size", 2, "--distributed-rank", rank]
        run_generate(data, translator, *options, *part)
    counts = [int(text.split()[2]) for text in logged if text.startswith("valid: scored")]
    assert sum(counts) == SIZES["valid"]
    assert 0 < counts[0] < SIZES["valid"]
    for part in (0, 1):
        assert any(f"this is part {part + 1} of 2" in text for text in logged)
    run_generate(data, translator, *options, "--num-shards", 2)
    assert logged[-1].endswith("the command ignores --num-shards 2")


def count_together(rank: int, address: str, lost: bool, log: str) -> None:
    init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    split = evaluation._Split([None] * 6)
    split.ids = {0, 2, 4} if rank == 0 else {1, 3} if lost else {1, 3, 5, 0}
    try:
        split.report("valid", False, rank, 2)
        text = "whole"
    except ValueError as error:
        text = str(error)
    Path(f"{log}{rank}").write_text(text)
    destroy_process_group()


@pytest.mark.parametrize("lost", [False, True])
def test_samples_of_all_processes_are_counted_together(lost, tmp_path):
    address, log = free_address(), str(tmp_path / "log")
    in_processes(count_together, [(rank, address, lost, log) for rank in (0, 1)])
    texts = [Path(f"{log}{rank}").read_text() for rank in (0, 1)]
    expected = "valid: 1 of 6 samples were not scored; the first are [5]" if lost else "whole"
    assert all(text.startswith(expected) for text in texts)


def test_lost_samples_are_refused(evaluate, data, translator, stock):
    stock(data_utils, "batch_by_size")  # drops the last batches
    with pytest.raises(ValueError, match=r"valid: \d of 13 samples were not scored; the first are"):
        evaluate(data, translator)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_model_is_not_validated(value, data, translator, tmp_path):
    state = torch.load(translator)
    state["model"]["decoder.output_projection.weight"].fill_(value)
    torch.save(state, tmp_path / "broken.pt")
    with pytest.raises(FloatingPointError, match=r"the loss of the batch with samples \["):
        run_validate(data, tmp_path / "broken.pt")


def test_blocks_of_a_text_are_counted(data, language_model, logged):
    line = [data / "lm", "--path", language_model, "--cpu", "--num-workers", 0]
    more = ["--tokens-per-sample", 16, "--gen-subset", "valid"]
    eval_lm.main(config("eval_lm", *line, *more))
    words = (data.parent / "valid.yy").read_text().split()
    tokens = len(words) + SIZES["valid"]
    blocks = math.ceil(tokens / 16)
    assert f"valid: scored {blocks} of {blocks} samples ({tokens} tokens)" in logged


def test_streams_count_tokens(stream_data, tmp_path):
    train_streams(stream_data, tmp_path, "--max-update", 1)
    where = [stream_data, "--path", last(tmp_path), "--task", "bptt_language_modeling"]
    scored = run("eval-lm", *where, "--gen-subset", "valid").output
    validated = run("validate", *where, "--batch-size", 1).output
    (line,) = [x for x in scored.splitlines() if "valid: scored" in x]
    tokens = line.rpartition("scored ")[2].split()[0]
    assert line.endswith(f"valid: scored {tokens} of {tokens} tokens")
    assert f"valid: scored {tokens} of {tokens} tokens" in validated


def test_a_validation_on_a_part_of_the_batches_is_said_once(data, tmp_path, caplog):
    chosen = {"--max-valid-steps": 1, "--validate-interval-updates": 1, "--batch-size-valid": 3}
    run_training(data, tmp_path, *translation_options(**chosen))
    part = "--max-valid-steps 1 validates on the first 2 of 5 batches"
    assert caplog.text.count(part) == 1
