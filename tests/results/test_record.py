"""The record of a run is complete, plain JSON, and written all at once."""

import json
import subprocess

import pytest

import highrank_plugins
from highrank_plugins.common import files
from highrank_plugins.common.provenance import git_state
from highrank_plugins.results import record
from highrank_plugins.results.scoring import Score
from highrank_plugins.training.configuration import Configuration


@pytest.fixture
def result():
    configuration = Configuration(data={"vocab_size": 5}, train={"arch": "x", "seed": 7})
    scores = {"sacrebleu": Score(30.1, "sig:bleu"), "chrf": Score(50.2, "sig:chrf")}
    first = record.RecordedTraining("fairseq-train data", {"updates": 3.0})
    scores["test_perplexity"] = Score(80.0, "tokens:9", "ppl|n:9|mass:1+3e-7|v:0.1.0")
    second = record.RecordedTraining("fairseq-train data --finetune-from-model a", {"updates": 2.0})
    return record.make_record(scores, configuration, first, second, paired={"scores": [1]})


def test_a_record_is_complete(result):
    again = {"command": "fairseq-train data --finetune-from-model a", "train": {"updates": 2.0}}
    expected = {
        "metrics": {"sacrebleu": 30.1, "chrf": 50.2, "test_perplexity": 80.0}, "seeds": [7],
        "certificates": {"test_perplexity": "ppl|n:9|mass:1+3e-7|v:0.1.0"}, "signature": "sig:bleu",
        "command": "fairseq-train data", "train": {"updates": 3.0}, "finetune": again,
        "paired": {"scores": [1]},
    }  # fmt: skip
    assert expected.items() <= result.items()
    assert result["config"]["train"]["arch"] == "x" and result["hardware"]["cores"] >= 1
    assert {"python", "torch", "ve-fairseq", "sacrebleu"} <= result["versions"].keys()


@pytest.mark.parametrize("words", ["--arch y", "--arch='y'", "--arch x --seed 8"])
def test_files_of_two_runs_are_refused(words):
    configuration = Configuration(train={"arch": "x", "seed": 7}, corpus={})
    training = record.RecordedTraining(f"fairseq-train data {words}", {"updates": 3.0})
    with pytest.raises(ValueError, match=r"--training: its command has --(arch y|seed 8), and the"):
        record.make_record({"a": Score(1.0, "b")}, configuration, training)


@pytest.mark.parametrize("changes", [{"seeds": [8]}, {"seeds": [7, 8]}])
def test_a_record_whose_seeds_disagree_is_refused(result, changes, tmp_path):
    path = tmp_path / "x-7.json"
    del result["paired"]
    path.write_text(json.dumps(result))
    record.load_record(path)
    path.write_text(json.dumps(result | changes))
    with pytest.raises(
        ValueError, match=r"x-7.json: not a record of a run: seeds are \[.*8\], and"
    ):
        record.load_record(path)


def test_only_changes_to_tracked_files_make_a_clone_modified(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)

    known = tmp_path / "highrank_plugins" / "__init__.py"
    known.parent.mkdir()
    known.write_text("")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    monkeypatch.setattr(highrank_plugins, "__file__", str(known))
    (tmp_path / "notes.txt").write_text("mine")
    assert git_state()["modified"] is False
    known.write_text("changed")
    assert git_state()["modified"] is True


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    files.write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"new": object()})
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"old": 1}
