"""Evaluations score all of the data or say what is left out, refuse NaN, and normalise once.

A batch that does not fit into memory is named, in training, too.
"""

import logging
import math
import re
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import data_utils
from fairseq.models import FairseqDecoder
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq_cli import eval_lm

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import evaluation
from highrank_plugins.hooks.generation import refuse_nan
from tests.compat.conftest import SIZES, evaluate, train
from tests.fairseq_cli import run
from tests.models.small import build

SKIP = "--skip-invalid-size-inputs-valid-test"
SHORT = ["--max-source-positions", 6, "--max-target-positions", 6]


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


@pytest.mark.parametrize(
    ("command", "words", "limits"),
    [("generate", ["--gen-subset", "valid"], {}),
     ("validate", [], {"max_source_positions": 6, "max_target_positions": 6})],
)  # fmt: skip
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
    assert str(ended.value).endswith(f"remove what {SKIP} leaves out")
    stock(data_utils, "batch_by_size")  # drops the last batches
    with pytest.raises(UserError, match=r"valid: \d of 13 samples are not scored; the first are"):
        evaluate(command, data, translator, *words)


def test_a_part_of_a_text_is_reported_as_such_and_may_be_empty(
    data, translator, language_model, logged
):
    empty = "--tokens-per-sample 16 --num-shards 20 --shard-id 19".split()
    run_eval_lm(data, language_model, *empty)
    assert logged[-1].startswith("test: this is part 20 of 20. All parts")
    options = ["--gen-subset", "valid", "--batch-size", 1, "--distributed-world-size"]
    for parts, rank in (2, 0), (2, 1), (14, 13):
        evaluate("generate", data, translator, *options, parts, "--distributed-rank", rank)
        said = f"this is part {rank + 1} of {parts}. All parts together must score 13"
        assert logged[-1] == f"valid: {said}"
    with pytest.raises(UserError, match=r"--num-shards 2 has no effect here.*-world-size and"):
        evaluate("generate", data, translator, "--num-shards", 2)
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


def run_eval_lm(data, path, *options) -> dict:
    return evaluate("eval-lm", data / "lm", path, *options)


def test_what_a_language_model_cannot_score_is_refused(data, language_model, tmp_path, logged):
    size = ["--tokens-per-sample", 16]
    for words, message in (
        ([], r"--tokens-per-sample \(now 1024\) to at most 16"),
        (["--tokens-per-sample", 17], "blocks are longer"),
        ([*size, "--context-window", 16], "--context-window 16 must be below --tokens-per-sa"),
        ([*size, "--post-process", "letter"], "--post-process letter would join nothing here"),
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
        evaluation._Split([], "test").check([], 0, 1)
    tokens = len((data.parent / "test.yy").read_text().split()) + SIZES["test"]
    assert f"test: scores {(blocks := -(-tokens // 16))} of {blocks} samples" in logged


@pytest.mark.parametrize(
    ("name", "words"),
    [("subword_nmt", "--tokens-per-sample 16"), ("@@ ", "--tokens-per-sample 9 --context-window 4"),
     ("@@ ", "--tokens-per-sample 16 --sample-break-mode eos --add-bos-token")],
)  # fmt: skip
def test_means_are_per_word_where_pieces_are_joined(
    data, language_model, monkeypatch, caplog, name, words
):
    """Blocks of 16 and of 5 end within words, which count once all the same."""
    options, pieces = words.split(), set()
    caplog.set_level("INFO")
    per_piece = run_eval_lm(data, language_model, *options)["loss"]
    stock = eval_lm.eval_lm

    def with_pieces(source_dictionary, **kwargs):
        pieces.update(source_dictionary.symbols[::3])
        source_dictionary.symbols[::3] = [f"{word}@@" for word in source_dictionary.symbols[::3]]
        return stock(source_dictionary=source_dictionary, **kwargs)

    monkeypatch.setattr(eval_lm, "eval_lm", with_pieces)
    found = run_eval_lm(data, language_model, *options, "--post-process", name)
    lines = (data.parent / "test.yy").read_text().splitlines()
    known = [word for line in lines for word in (*line.split(), "</s>")]
    number = len([word for word in known if word not in pieces])
    assert number < len(known) and f"are means over {number} words and ends" in caplog.text
    for bits in found["loss"], math.log2(found["perplexity"]):
        assert bits * number == pytest.approx(per_piece * len(known), rel=1e-5)
    assert re.findall(r"\|n:(\d+)\|", caplog.text) == [str(len(known)), str(number)]
    assert caplog.text.count(f"Evaluated {len(known)} tokens") == 2


QUICK = ["--beam", 2, "--max-len-b", 4, "--quiet"]


def test_nan_is_an_error(data, translator, tmp_path, monkeypatch):
    state, broken = torch.load(translator), tmp_path / "broken.pt"
    state["model"]["decoder.output_projection.weight"][5] = float("nan")
    torch.save(state, broken)
    with pytest.raises(FloatingPointError, match=r"the loss of the batch with samples \["):
        evaluate("validate", data, broken)
    for path in broken, f"{translator}:{broken}":
        with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
            evaluate("generate", data, path, *QUICK)
    assert evaluate("generate", data, translator, *QUICK) is not None
    # every model gives NaN to class 5, as a mixture may
    sound = FairseqDecoder.get_normalized_probs

    def probabilities(decoder, *args, **kwargs):
        return sound(decoder, *args, **kwargs).index_fill(-1, torch.tensor(5), torch.nan)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", probabilities)
    with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
        evaluate("generate", data, translator, *QUICK)

    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(translator)])
    language_model = torch.nn.Identity()  # its output is the input
    SequenceGenerator(models, task.target_dictionary, lm_model=language_model)
    with pytest.raises(FloatingPointError, match="--lm-path"):
        language_model([torch.full((1, 20), torch.nan)])
    for dtype in torch.float16, torch.float32:  # infinities are allowed
        scores = torch.full((3, 70_000), -3.0, dtype=dtype)
        scores[:, 1] = -torch.inf
        refuse_nan(scores, "a model")
        scores[2, 7] = torch.nan
        with pytest.raises(FloatingPointError):
            refuse_nan(scores, "a model")


@pytest.fixture
def normalised(monkeypatch) -> list[torch.Tensor]:
    """Record what fairseq has normalised."""
    seen = []
    stock = FairseqDecoder.get_normalized_probs

    def get_normalized_probs(decoder, net_output, *more):
        seen.append(net_output[0].clone())
        return stock(decoder, net_output, *more)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", get_normalized_probs)
    return seen


def hypotheses_of(built, models, **options) -> list[dict]:
    """Return all hypotheses of a batch."""
    search = Namespace(beam=3, max_len_a=0, max_len_b=8, **options)
    generator = built.task.build_generator(models, search)
    hypotheses = built.task.inference_step(generator, models, built.batch())
    return [h for sentence in hypotheses for h in sentence]


@pytest.mark.parametrize(
    ("head", "others", "options"),
    [
        *((head, [], {}) for head in ("softmax", "mos", "mixtape", "plif")),
        ("mos", ["transformer"], {}),  # fairseq's model needs its only log_softmax
        ("mixtape", [], {"temperature": 0.5}),
    ],
)
def test_hypotheses_are_those_of_fairseq_with_fewer_softmaxes(
    head, others, options, mt_data, stock, normalised
):
    built = build(mt_data, f"transformer_{head}_tiny")
    models = [built.model.eval()]
    models += [build(mt_data, arch, "--criterion", "cross_entropy").model.eval() for arch in others]
    found, steps = hypotheses_of(built, models, **options), len(normalised)
    assert (steps > 0) is bool(others or options)
    if options:
        assert all((divided.exp().sum(-1) < 0.9).all() for divided in normalised)
    stock(EnsembleModel, "forward_decoder")
    for a, b in zip(found, hypotheses_of(built, models, **options), strict=True):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        torch.testing.assert_close(a["positional_scores"], b["positional_scores"])
    assert len(normalised) == 3 * steps if others else len(normalised) > steps


CUDA = torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."
CUBLAS = RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"


def fail_with(error: tuple[type, str] | None) -> None:
    if error is None:
        torch.empty(1 << 60, dtype=torch.uint8)
    raise error[0](error[1])


@pytest.fixture
def short(monkeypatch):
    """Make the loss fail from its n-th batch of a kind (training or not) on, some times."""

    def patch(error, number=1, training=True, times=9):
        real, calls = CrossEntropyCriterion.forward, []

        def forward(criterion, model, sample, reduce=True):
            if model.training is training:
                calls.append(1)
                if number <= len(calls) < number + times:
                    fail_with(error)
            return real(criterion, model, sample, reduce)

        monkeypatch.setattr(CrossEntropyCriterion, "forward", forward)

    return patch


@pytest.mark.parametrize("error", [CUDA, CUBLAS, None, (MemoryError, "")])
def test_a_run_names_the_batch_and_what_to_lower(data, tmp_path, short, error):
    short(error, 3)
    with pytest.raises(UserError) as raised:
        train(data, tmp_path, max_update=9, update_freq=2, max_tokens=40)
    message = str(raised.value)
    assert message.startswith("Out of memory in update 2: a batch of ")
    assert "sentences, " in message and "tokens; the longest sentence has " in message
    assert "Halve --max-tokens (now 40) and double --update-freq (now 2)" in message
    assert (tmp_path / "crash.pt").exists() == (error == (MemoryError, ""))  # fairseq's


def test_other_errors_are_left_alone(data, tmp_path, short):
    short((RuntimeError, "shapes differ"))
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        train(data, tmp_path)


def test_generation_and_scoring_name_their_batch(data, translator, language_model, monkeypatch):
    monkeypatch.setattr(SequenceGenerator, "_generate", lambda *_, **__: fail_with(CUDA))
    with pytest.raises(UserError, match=r"in generation: a batch of 3 sent.*or --beam"):
        evaluate("generate", data, translator, "--batch-size", 3)
    monkeypatch.setattr(torch.nn.Embedding, "forward", lambda *args: fail_with(None))
    with pytest.raises(UserError, match=r"in scoring: a batch of .*or --softmax-batch"):
        evaluate("eval-lm", data / "lm", language_model, "--tokens-per-sample", 16)


def test_words_are_not_glued_together(data, translator):
    with pytest.raises(UserError, match="--post-process wordpiece: no word of the dictionary has"):
        evaluate("generate", data, translator, *QUICK, "--post-process", "wordpiece")
