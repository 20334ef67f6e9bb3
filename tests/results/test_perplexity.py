"""Test results/perplexity.py."""

import pytest

from highrank_plugins.results.perplexity import before_finetuning, read_eval_lm
from highrank_plugins.results.scoring import ScoreError

LOG = """INFO:fairseq_cli.eval_lm:Evaluated 82,430 tokens in 9.5s (8687.99 tokens/s)
INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72
"""


def test_the_result_of_eval_lm_is_read(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(LOG)
    scores = read_eval_lm(log, "test")
    assert list(scores) == ["test_perplexity", "test_bits"]
    assert scores["test_perplexity"].value == 55.72
    assert scores["test_bits"].value == 5.8
    assert scores["test_perplexity"].signature == "tokens:82430|eval:static"


def test_the_signature_has_the_number_of_words_that_pieces_make(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(f"{LOG}loss and perplexity are means over 61,234 words and ends of lines\n")
    scores = read_eval_lm(log, "test")
    assert scores["test_bits"].signature == "tokens:82430|eval:static|words:61234"


def test_a_part_of_the_text_is_refused(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(f"{LOG}INFO: test: this is part 1 of 2. All parts together must score 9\n")
    with pytest.raises(ScoreError, match="this is part 1 of 2; score the whole text"):
        read_eval_lm(log, "test")


def test_a_log_without_a_result_is_refused(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(LOG.splitlines()[0])
    with pytest.raises(ScoreError, match=r"test\.log: fairseq-eval-lm has printed no result"):
        read_eval_lm(log, "test")


def test_the_perplexity_before_finetuning_is_read(tmp_path):
    for split in ("valid", "test"):
        with pytest.raises(ScoreError, match=f"before_finetuning_{split}.log is missing; score"):
            before_finetuning(tmp_path)
        (tmp_path / f"before_finetuning_{split}.log").write_text(LOG)
    scores = before_finetuning(tmp_path)
    assert {name: score.value for name, score in scores.items()} == {
        "valid_perplexity_before_finetuning": 55.72,
        "test_perplexity_before_finetuning": 55.72,
    }
