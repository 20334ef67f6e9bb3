"""A model of streams scores and continues sentences; a text is not cut into sentences."""

import pytest

from tests.fairseq_cli import attempt, run
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import last

TASK = ["--task", "bptt_language_modeling"]
SENTENCE = "the house eats small"


@pytest.fixture(scope="module")
def trained(stream_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_streams(stream_data, folder, *CERTAIN, "--max-update", 3)
    return last(folder)


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
