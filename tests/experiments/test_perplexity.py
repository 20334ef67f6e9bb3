"""experiments/perplexity.py"""

import json

import pytest

from highrank_plugins.experiments.perplexity import read_adaptive, read_eval_lm
from highrank_plugins.experiments.scoring import ScoreError

LOG = """INFO:fairseq_cli.eval_lm:Evaluated 82,430 tokens in 9.5s (8687.99 tokens/s)
INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72
"""


def test_the_result_of_eval_lm(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(LOG)
    scores = read_eval_lm(log, "test")
    assert list(scores) == ["test_perplexity", "test_bits"]
    assert scores["test_perplexity"].value == 55.72
    assert scores["test_bits"].value == 5.8
    assert scores["test_perplexity"].signature == "tokens:82430|eval:static"


def test_a_log_without_result(tmp_path):
    log = tmp_path / "test.log"
    log.write_text(LOG.splitlines()[0])
    with pytest.raises(ScoreError, match=r"test\.log: fairseq-eval-lm has printed no result"):
        read_eval_lm(log, "test")


def test_the_result_of_an_adaptive_evaluation(tmp_path):
    file = tmp_path / "dynamic_eval.json"
    file.write_text(json.dumps({"metrics": {"perplexity": 47.691}, "tokens": 82430}))
    (score,) = read_adaptive(file, "test").items()
    assert score[0] == "test_dynamic_perplexity"
    assert (score[1].value, score[1].signature) == (47.69, "tokens:82430|eval:dynamic")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"metrics": {}}'])
def test_no_result(tmp_path, text):
    file = tmp_path / "cache_eval.json"
    file.write_text(text)
    with pytest.raises(ScoreError, match=r"cache_eval\.json: no result of an evaluation"):
        read_adaptive(file, "test")
