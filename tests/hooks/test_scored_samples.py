"""Test hooks/scored_samples.py."""

import logging
import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import data_utils
from fairseq.tasks import FairseqTask
from fairseq_cli import eval_lm, generate, validate

import highrank_plugins.compat.dropped_batches  # noqa: F401  (no sentence is lost)
from highrank_plugins.hooks import scored_samples
from tests.compat.conftest import SIZES, config
from tests.fairseq_cli import run
from tests.stream_corpus import train_streams
from tests.trainings import last

SKIP = "--skip-invalid-size-inputs-valid-test"
SHORT = ["--max-source-positions", 6, "--max-target-positions", 6]


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
    scored_samples.logger.addHandler(handler)
    scored_samples.logger.setLevel(logging.INFO)
    yield messages
    scored_samples.logger.removeHandler(handler)
    scored_samples.logger.setLevel(logging.NOTSET)


@pytest.fixture(params=["generate", "validate"])
def evaluate(request):
    """Return a function that evaluates; with `short` on sentences of six tokens at most."""
    if request.param == "generate":
        return lambda data, path, *options, short=False: run_generate(
            data, path, "--gen-subset", "valid", *(SHORT if short else []), *options
        )
    return lambda data, path, *options, short=False: run_validate(
        data,
        path,
        *options,
        **({"max_source_positions": 6, "max_target_positions": 6} if short else {}),
    )


def test_all_is_scored(evaluate, data, translator, logged):
    evaluate(data, translator)
    total = SIZES["valid"]
    (line,) = [text for text in logged if text.startswith("valid: scored")]
    assert line.startswith(f"valid: scored {total} of {total} samples (")


def test_left_out_samples_are_named(evaluate, data, translator, logged):
    evaluate(data, translator, SKIP, short=True)
    lines = [line.split() for line in (data.parent / "valid.xx").read_text().splitlines()]
    lost = [index for index, words in enumerate(lines) if len(words) > 5]
    assert 0 < len(lost) < len(lines)
    (line,) = [text for text in logged if "were not scored" in text]
    start = f"valid: {len(lost)} of {len(lines)} samples were not scored; the first are {lost[:10]}"
    assert line.startswith(start)
    assert line.endswith("the result covers the others only.")


def test_lost_samples_are_refused(evaluate, data, translator, stock):
    stock(data_utils, "batch_by_size")  # drops the last batches
    with pytest.raises(ValueError, match=r"valid: \d of 13 samples were not scored; the first are"):
        evaluate(data, translator)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_model_is_not_validated(value, data, translator, tmp_path):
    with pytest.raises(FloatingPointError, match=r"the loss of the batch with samples \["):
        run_validate(data, broken(translator, tmp_path, value))


def test_stock_validates_nan(data, translator, tmp_path, stock):
    stock(FairseqTask, "valid_step")
    run_validate(data, broken(translator, tmp_path, math.nan))


def broken(checkpoint, folder, value):
    state = torch.load(checkpoint)
    state["model"]["decoder.output_projection.weight"].fill_(value)
    torch.save(state, folder / "broken.pt")
    return folder / "broken.pt"


def test_a_text_in_blocks(data, language_model, logged):
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
