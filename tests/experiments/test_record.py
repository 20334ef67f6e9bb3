"""The record of a run is complete, plain JSON, and written all at once."""

import json

import pytest

from highrank_plugins.experiments import record
from highrank_plugins.experiments.configuration import Configuration
from highrank_plugins.experiments.scoring import Score


@pytest.fixture
def result():
    configuration = Configuration(data={"vocab_size": 5}, train={"arch": "x", "seed": 7})
    scores = {"sacrebleu": Score(30.1, "sig:bleu"), "chrf": Score(50.2, "sig:chrf")}
    return record.make_record(scores, configuration, "fairseq-train data", {"updates": 3.0})


def test_everything_is_there(result):
    assert result["metrics"] == {"sacrebleu": 30.1, "chrf": 50.2}
    assert result["signature"] == "sig:bleu"
    assert result["config"]["train"]["arch"] == "x"
    assert result["seeds"] == [7]
    assert result["command"] == "fairseq-train data"
    assert result["train"] == {"updates": 3.0}
    assert result["hardware"]["cores"] >= 1
    assert {"python", "torch", "ve-fairseq", "sacrebleu"} <= result["versions"].keys()


def test_git_names_the_revision_of_a_clone(result):
    assert result["git"] is None or len(result["git"]["revision"] or 40 * "0") == 40


def test_it_survives_json(result, tmp_path):
    record.write_json(tmp_path / "results.json", result)
    assert json.loads((tmp_path / "results.json").read_text()) == result
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    record.write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        record.write_json(path, {"new": object()})
    with pytest.raises(UnicodeEncodeError):
        record.write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"old": 1}
