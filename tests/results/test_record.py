"""The record of a run is complete, has the numbers of metrics.jsonl, and is written at once."""

import json
import math
import subprocess

import pytest

import highrank_plugins
from highrank_plugins.common import files
from highrank_plugins.common.names import Score
from highrank_plugins.common.provenance import git_state
from highrank_plugins.results.doubts import doubts
from highrank_plugins.results.record import (
    METRICS,
    RecordedTraining,
    load_record,
    make_record,
    read_training,
    summarise,
)

AGAIN = "fairseq-train data --finetune-from-model a"


def test_a_record_is_complete_and_written_whole_or_not_at_all(tmp_path):
    scores = {"sacrebleu": Score(30.1, "sig:bleu"), "chrf": Score(50.2, "sig:chrf")}
    scores["test_perplexity"] = Score(80.0, "tokens:9", "ppl|n:9|mass:1+3e-7|v:0.1.0")
    first, second = {"updates": 3.0}, {"updates": 2.0}
    trainings = RecordedTraining("fairseq-train data", first), RecordedTraining(AGAIN, second)
    config = {"data": {"vocab_size": 5}, "train": {"arch": "x", "seed": 7}}
    result = make_record(scores, config, *trainings, paired={"scores": [1]})
    expected = {
        "metrics": {"sacrebleu": 30.1, "chrf": 50.2, "test_perplexity": 80.0}, "seeds": [7],
        "certificates": {"test_perplexity": "ppl|n:9|mass:1+3e-7|v:0.1.0"}, "signature": "sig:bleu",
        "command": "fairseq-train data", "train": first, "paired": {"scores": [1]},
        "finetune": {"command": AGAIN, "train": second}, "config": config,
    }  # fmt: skip
    assert expected.items() <= result.items() and result["hardware"]["cores"] >= 1
    assert {"python", "torch", "ve-fairseq", "sacrebleu"} <= result["versions"].keys()
    path = tmp_path / "x-7.json"
    files.write_json(path, result)
    with pytest.raises(TypeError):
        files.write_json(path, {"new": object()})
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "\ud800")
    assert expected.items() <= load_record(path).items()
    for seeds in ([8], [7, 8]):
        files.write_json(path, result | {"seeds": seeds})
        with pytest.raises(ValueError, match=r"x-7.json: seeds are \[.*8\], and train.seed is 7"):
            load_record(path)


def test_files_of_two_runs_are_refused():
    options = {"lr": 0.25, "update_freq": 2, "no_progress_bar": True, "tag": "a=b"}
    given = {"a": Score(1.0, "b")}, {"train": {"arch": "x", "seed": 7} | options, "corpus": {}}
    same = "fairseq-train # it's\n --no-progress-bar data --max-epoch 1 --lr '[25e-2]' --arch=x"
    make_record(*given, RecordedTraining(same, {}))
    for words in ("--arch y", "--arch='y'", "--arch x --seed 8", "--lr 0.5"):
        training = RecordedTraining(f"fairseq-train data {words}", {"updates": 3.0})
        said = r"--training: its command has --(arch y|seed 8|lr 0.5), and"
        with pytest.raises(ValueError, match=said):
            make_record(*given, training)


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
    (tmp_path / ".git" / "HEAD").write_text("damaged")  # as a clone of another user is read
    assert git_state() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_state() is None


SIZES = {"parameters": 12345, "updates_per_epoch": 100}
START = {"tag": "start", "epoch": 1, "num_updates": 0} | SIZES


def inner(update, wall):
    more = {"loss": 5.5, "wps": 1234.5, "num_updates": update, "wall": wall}
    return {"tag": "train_inner", "epoch": math.ceil(update / 100)} | more


def epoch(number, updates, wps, wall, memory=1.0):
    more = {"wps": wps, "num_updates": updates, "wall": wall, "peak_memory_gib": memory}
    return {"tag": "train", "epoch": number} | more


def valid(number, updates, loss, **more):
    return {"tag": "valid", "epoch": number, "num_updates": updates, "loss": loss} | more


RUN = [
    START, inner(50, 30), valid(1, 100, 7.0), epoch(1, 100, 1000.0, 60, 1.5),
    valid(2, 200, 6.5004), epoch(2, 200, 3000.0, 120), valid(3, 300, 6.6),
    epoch(3, 300, 2000.0, 180),
]  # fmt: skip


def test_the_summary_has_the_last_numbers_the_median_speed_and_the_best_loss():
    assert summarise(RUN) == {
        "updates": 300, "wall_seconds": 180, "epochs": 3, "words_per_second": 2000,
        "seconds_per_epoch": 60, "parameters": 12345, "peak_memory_gib": 1.5,
        "valid_loss": 6.6, "best_valid_loss": 6.5,  # with the digits that fairseq prints
    }  # fmt: skip
    assert summarise([*RUN, inner(350, 210)])["updates"] == 350
    # and the best of scores whose direction is known
    found = summarise([valid(n, 1, 6 - n, bleu=14 + n, latency=1) for n in (1, 2)] + RUN[-1:])
    assert found["valid_bleu"] == found["best_valid_bleu"] == 16 and "valid_latency" not in found
    still = "the validation {} was still improving at the last epoch".format
    assert doubts({"metrics": {}, "train": found}) == [still("loss"), still("bleu")]
    assert "seconds_per_epoch" not in summarise([START, epoch(1, 100, 1000.0, 60)])  # of one epoch


def write(folder, entries, mode="w"):
    with (folder / METRICS).open(mode) as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_a_training_run_is_read_with_its_command(tmp_path):
    (tmp_path / "command.sh").write_text("highrank launch --slurm job.sh --submit\n")
    write(tmp_path, RUN)
    found = read_training(tmp_path)
    assert found.command == "highrank launch --slurm job.sh --submit"
    assert found.summary["updates"] == 300 and found.implementations == {}
    write(tmp_path, [{**epoch(3, 301, 1.0, 200), "implementations": {"MoS": "cpp"}}], "a")
    found = make_record({"a": Score(1.0, "b")}, {"train": {"arch": "x"}}, read_training(tmp_path))
    assert found["implementations"] == {"MoS": "cpp"}


@pytest.mark.parametrize(("entries", "message"), [
    ([START], "metrics.jsonl: no numbers of a training run; give"),
    ([[1]], "line of numbers is damaged: TypeError"),
    ([inner(3, 1) | {"implementations": 3}], "line of numbers is damaged: TypeError"),
    ([START, valid(1, 100, None), epoch(1, 100, 9000.0, 60)],
     "valid_loss is nan, best_valid_loss is nan: the training run has diverged"),
])  # fmt: skip
def test_numbers_of_no_training_run_are_refused(tmp_path, entries, message):
    (tmp_path / "command.sh").write_text("fairseq-train\n")
    write(tmp_path, entries)
    with pytest.raises(ValueError, match=message):
        read_training(tmp_path)
