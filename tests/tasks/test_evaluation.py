"""All ways to evaluate a text agree and count every token; typed sentences are continued."""

import re

import pytest
import torch
from fairseq import checkpoint_utils

from tests.fairseq_cli import attempt, run
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import last

TASK = ["--task", "bptt_language_modeling"]


@pytest.fixture(scope="module")
def trained(stream_data, tmp_path_factory):
    """Train a model whose words depend on those before; return it and its loss in bits."""
    folder = tmp_path_factory.mktemp("trained")
    words = "--optimizer adam --lr 0.03 --clip-norm 1 --max-epoch 5".split()
    train_streams(stream_data, folder, *CERTAIN, *words)
    return last(folder), validation_loss(folder)


def validation_loss(folder):
    return torch.load(last(folder), weights_only=True)["extra_state"]["val_loss"]


def in_one_go(data, path):
    """Return mean bits of the validation tokens in one forward pass, and their number."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    task.load_dataset("valid")
    tokens = task.dataset("valid").tokens
    source = torch.cat([torch.tensor([task.dictionary.eos()]), tokens[:-1]])
    with torch.no_grad():
        log_probs, _ = model.eval()(source.unsqueeze(0))
    picked = log_probs[0].gather(-1, tokens.unsqueeze(-1))
    return -picked.mean().item() / 0.6931471805599453, len(tokens)


def scored(output):
    """Return bits per token, and the number of tokens, as fairseq-eval-lm printed them."""
    loss = float(re.search(r"Loss \(base 2\): ([\d.]+)", output)[1])
    return loss, int(re.search(r"Evaluated (\d+) tokens", output)[1])


def test_all_ways_to_evaluate_agree(stream_data, trained):
    path, in_training = trained
    want, tokens = in_one_go(stream_data, path)
    assert in_training == pytest.approx(want, abs=1e-5)
    assert want < 3.5  # of log2(18) = 4.17: it has learnt

    words = [stream_data, "--path", path, "--gen-subset", "valid", *TASK, "--bptt", 6]
    loss, counted = scored(run("eval-lm", *words).output)
    assert counted == tokens
    assert loss == pytest.approx(want, abs=1e-4)

    words = [stream_data, "--path", path, "--batch-size", 1, *TASK]
    output = run("validate", *words).output
    assert float(re.search(r"loss ([\d.]+)", output)[1]) == pytest.approx(want, abs=1e-5)

    words = [stream_data, "--path", path, "--gen-subset", "valid", *TASK, "--eval-streams", 4]
    loss, counted = scored(run("eval-lm", *words).output)
    assert counted == tokens
    assert abs(loss - want) > 0.01  # three streams begin without a context


def test_averages_are_what_is_validated_and_saved(stream_data, tmp_path):
    words = ["--max-epoch", 2, "--asgd-at-epoch", 1, "--lr", 10]
    train_streams(stream_data, tmp_path, *words)
    state = torch.load(last(tmp_path), weights_only=True)
    optimizer = state["last_optimizer_state"]
    assert optimizer["nt_asgd"]["averages_in_model"]
    want, _ = in_one_go(stream_data, last(tmp_path))
    assert validation_loss(tmp_path) == pytest.approx(want, abs=1e-5)
    # training continues from the raw weights, which differ
    embedding = state["model"]["decoder.output_projection.weight"]
    raw = [s["ax"] for s in optimizer["state"].values() if s["ax"].shape == embedding.shape]
    assert len(raw) == 1 and not torch.allclose(raw[0], embedding, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "language_modeling"], "add --task bptt_language_modeling"),
        ([*TASK, "--num-shards", 2], "--num-shards: streams cannot be divided"),
        ([*TASK, "--batch-size", 3], "give --eval-streams 3"),
        ([*TASK, "--context-window", 5], "leave it (and --context-window) out"),
        ([*TASK, "--gen-subset", "nothing"], "split 'nothing' is missing"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_options_that_lose_state_or_tokens_are_refused(words, message, stream_data, trained):
    done = attempt("eval-lm", stream_data, "--path", trained[0], *words)
    assert done.code == 2
    assert message in done.output


SENTENCE = "the house eats small"


def test_typed_sentences_are_continued(stream_data, trained):
    words = [stream_data, "--path", trained[0], *TASK, "--beam", 2, "--min-len", 6]
    done = run("interactive", *words, stdin=f"{SENTENCE}\nthe cat\n")
    first, second = (line.split("\t")[2] for line in done.lines("H-"))
    assert first.startswith(f"{SENTENCE} ") and second.startswith("the cat ")


@pytest.mark.parametrize("words", [["--score-reference"], []], ids=str)
def test_generating_a_text_is_refused(words, stream_data, trained):
    where = [stream_data, "--path", trained[0], *TASK, "--gen-subset", "valid", "--batch-size", 1]
    done = attempt("generate", *where, *words)
    assert done.code == 2
    assert "score it with fairseq-eval-lm --task bptt_language_modeling" in done.output
