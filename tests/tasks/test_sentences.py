"""A model of streams scores and continues sentences; a text is not cut into sentences."""

import pytest
import torch

import highrank_plugins
from highrank_plugins.models.awd_lstm_lm import AWDLSTMLanguageModel
from tests.fairseq_cli import attempt, run
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import last

highrank_plugins.register()

TASK = ["--task", "bptt_language_modeling"]
SENTENCE = "the house eats small"


@pytest.fixture(scope="module")
def trained(stream_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_streams(stream_data, folder, *CERTAIN, "--max-update", 3)
    return last(folder)


def test_the_hub_scores_and_generates(stream_data, trained):
    hub = AWDLSTMLanguageModel.from_pretrained(
        str(trained.parent), trained.name, str(stream_data)
    ).eval()
    *words, end = hub.encode(SENTENCE).tolist()
    log_probs, _ = hub.models[0](torch.tensor([[end, *words[:-1]]]))
    want = log_probs[0].gather(-1, torch.tensor(words).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(hub.score(SENTENCE)["positional_scores"], want)
    assert hub.sample(SENTENCE, beam=2, min_len=6).startswith(f"{SENTENCE} ")


def test_typed_sentences_are_continued(stream_data, trained):
    words = [stream_data, "--path", trained, *TASK, "--beam", 2, "--min-len", 6]
    done = run("interactive", *words, stdin=f"{SENTENCE}\nthe cat\n")
    first, second = (line.split("\t")[2] for line in done.lines("H-"))
    assert first.startswith(f"{SENTENCE} ") and second.startswith("the cat ")


@pytest.mark.parametrize("words", [["--score-reference"], []], ids=str)
def test_generating_a_text_is_refused(words, stream_data, trained):
    where = [stream_data, "--path", trained, *TASK, "--gen-subset", "valid", "--batch-size", 1]
    done = attempt("generate", *where, *words)
    assert done.code == 2
    assert "score it with fairseq-eval-lm --task bptt_language_modeling" in done.output
