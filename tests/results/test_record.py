"""The record of a run is complete, has the numbers of metrics.jsonl, and is written at once."""

import json
import math
import re
import subprocess
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.common import files
from highrank_plugins.common.names import Score
from highrank_plugins.common.provenance import git_state
from highrank_plugins.reports.comparisons import runs_table
from highrank_plugins.reports.tables import to_markdown
from highrank_plugins.results import record
from highrank_plugins.results.doubts import doubts
from highrank_plugins.results.record import METRICS, make_record, read_training, summarise
from highrank_plugins.training.configuration import Configuration


@pytest.fixture
def result():
    configuration = Configuration(data={"vocab_size": 5}, train={"arch": "x", "seed": 7})
    scores = {"sacrebleu": Score(30.1, "sig:bleu"), "chrf": Score(50.2, "sig:chrf")}
    first = record.RecordedTraining("fairseq-train data", {"updates": 3.0})
    scores["test_perplexity"] = Score(80.0, "tokens:9", "ppl|n:9|mass:1+3e-7|v:0.1.0")
    second = record.RecordedTraining("fairseq-train data --finetune-from-model a", {"updates": 2.0})
    return make_record(scores, configuration.blocks(), first, second, paired={"scores": [1]})


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


@pytest.mark.parametrize("words", ["--arch y", "--arch='y'", "--arch x --seed 8", "--lr 0.5"])
def test_files_of_two_runs_are_refused(words):
    train = {
        "arch": "x",
        "seed": 7,
        "lr": 0.25,
        "update_freq": 2,
        "no_progress_bar": True,
        "tag": "a=b",
    }
    configuration = Configuration(train=train, corpus={})
    same = "fairseq-train # it's\n --no-progress-bar data --max-epoch 1 --lr '[25e-2]' --arch=x"
    make_record({"a": Score(1.0, "b")}, configuration.blocks(), record.RecordedTraining(same, {}))
    training = record.RecordedTraining(f"fairseq-train data {words}", {"updates": 3.0})
    with pytest.raises(
        ValueError, match=r"--training: its command has --(arch y|seed 8|lr 0.5), and"
    ):
        make_record({"a": Score(1.0, "b")}, configuration.blocks(), training)


@pytest.mark.parametrize("changes", [{"seeds": [8]}, {"seeds": [7, 8]}])
def test_a_record_whose_seeds_disagree_is_refused(result, changes, tmp_path):
    path = tmp_path / "x-7.json"
    path.write_text(json.dumps(result))
    record.load_record(path)
    path.write_text(json.dumps(result | changes))
    with pytest.raises(ValueError, match=r"x-7.json: seeds are \[.*8\], and"):
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


SIZES = {"parameters": 12345, "updates_per_epoch": 100}
START = {"tag": "start", "epoch": 1, "num_updates": 0} | SIZES


def inner(update, wall):
    more = {"loss": 5.5, "wps": 1234.5, "num_updates": update, "wall": wall}
    return {"tag": "train_inner", "epoch": math.ceil(update / 100)} | more


def epoch(number, updates, wps, wall, memory=1.0):
    more = {"wps": wps, "num_updates": updates, "wall": wall, "peak_memory_gib": memory}
    return {"tag": "train", "epoch": number} | more


def valid(number, updates, loss):
    return {"tag": "valid", "epoch": number, "num_updates": updates, "loss": loss}


RUN = [
    START,
    inner(50, 30),
    valid(1, 100, 7.0),
    epoch(1, 100, 1000.0, 60, 1.5),
    valid(2, 200, 6.5004),
    epoch(2, 200, 3000.0, 120),
    valid(3, 300, 6.6),
    epoch(3, 300, 2000.0, 180),
]


def test_the_summary_has_the_last_numbers_the_median_speed_and_the_best_loss():
    assert summarise(RUN) == {
        "updates": 300, "wall_seconds": 180, "epochs": 3, "words_per_second": 2000,
        "seconds_per_epoch": 60, "parameters": 12345, "peak_memory_gib": 1.5,
        "valid_loss": 6.6, "best_valid_loss": 6.5,  # with the digits that fairseq prints
    }  # fmt: skip
    assert summarise([*RUN, inner(350, 210)])["updates"] == 350


def test_the_summary_has_the_best_of_scores_whose_direction_is_known():
    run = [
        entry | {"bleu": 14 + entry["epoch"], "latency": 1} if entry["tag"] == "valid" else entry
        for entry in RUN
    ]
    found = summarise(run)
    assert found["valid_bleu"] == found["best_valid_bleu"] == 17 and "valid_latency" not in found
    said = doubts({"metrics": {}, "train": found})
    assert said == ["the validation bleu was still improving at the last epoch"]


def test_a_single_epoch_takes_what_the_run_took_until_its_end():
    one = [START, epoch(1, 100, 1000.0, 60), inner(150, 90)]
    assert summarise(one)["seconds_per_epoch"] == 60
    assert summarise(one[:2])["seconds_per_epoch"] == 60
    part = [START, epoch(1, 50, 1000.0, 31)]  # ended by --max-update
    for less in (part, [START, inner(50, 30)], one[1:2]):
        assert "seconds_per_epoch" not in summarise(less)


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
    later = read_training(tmp_path)
    configuration = Configuration(corpus={}, train={"arch": "x"})
    found = make_record({"a": Score(1.0, "b")}, configuration.blocks(), later)
    assert found["implementations"] == {"MoS": "cpp"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([START], "metrics.jsonl: no numbers of a training run; give"),
        ([START, {"tag": "train"}], "line of numbers is damaged: KeyError"),
        ([[1]], "line of numbers is damaged: TypeError"),
        ([START, inner(3, "x")], "line of numbers is damaged: ValueError"),
        ([START | {"parameters": "x"}, inner(3, 1)], "line of numbers is damaged: ValueError"),
        ([inner(3, 1) | {"implementations": 3}], "line of numbers is damaged: TypeError"),
        ([START, valid(1, 100, None), epoch(1, 100, 9000.0, 60)],
         "valid_loss is nan, best_valid_loss is nan: the training run has diverged"),
    ],
)  # fmt: skip
def test_numbers_of_no_training_run_are_refused(tmp_path, entries, message):
    (tmp_path / "command.sh").write_text("fairseq-train\n")
    write(tmp_path, entries)
    with pytest.raises(ValueError, match=message):
        read_training(tmp_path)


DOCS = Path(__file__).parents[2] / "docs"
STUDIES = sorted(folder for folder in (DOCS / "records").iterdir() if folder.is_dir())


def results_table(paths):
    return to_markdown([runs_table(paths)])


def write_record(path: Path, bleu: float) -> Path:
    train = {"updates": 1900.0, "words_per_second": 1889.3}
    git = {"revision": "0123456789abcdef", "modified": False}
    more = {"git": git, "hardware": {"cores": 1}, "versions": {"torch": "2"}}
    record = {"metrics": {"sacrebleu": bleu, "chrf": 50.126}, "train": train, **more}
    path.write_text(json.dumps(record))
    return path


def test_the_table_has_a_row_per_record(tmp_path):
    paths = [write_record(tmp_path / f"{name}.json", bleu) for name, bleu in [("a", 30), ("b", 31)]]
    rows = results_table(paths).splitlines()
    assert len(rows) == 6 and rows[5].startswith("What can be claimed: not which system is better")
    assert rows[2] == "| a | 30.00 | 50.13 | 1,900 | 1,889 | 1 | 2 | 012345678 |"
    assert rows[3].startswith("| b | 31.00 |")

    record = json.loads(paths[0].read_text())
    record["train"] |= {"parameters": 1234567, "seconds_per_epoch": 61.5}
    paths[0].write_text(json.dumps(record))
    rows = results_table(paths).splitlines()
    assert " | parameters | s/epoch | updates | " in rows[0]
    assert " | 1,234,567 | 62 | 1,900 | " in rows[2] and " | – | – | 1,900 | " in rows[3]


def test_runs_with_equal_file_names_get_distinct_names(tmp_path):
    paths = [tmp_path / name / "results.json" for name in ("mos", "softmax")]
    for bleu, path in enumerate(paths):
        path.parent.mkdir()
        write_record(path, bleu)
    rows = results_table(paths).splitlines()[2:4]
    assert [row.split(" | ")[0] for row in rows] == ["| mos", "| softmax"]


def test_a_run_given_twice_is_refused(tmp_path):
    run = {"config": {"train": {"arch": "a"}}, "seeds": [1]}
    paths = [write_record(tmp_path / f"{name}.json", 30) for name in ("a", "b", "c")]
    for path, seed in zip(paths, (1, 2, 1), strict=True):
        path.write_text(json.dumps(json.loads(path.read_text()) | run | {"seeds": [seed]}))
    assert len(results_table(paths[:2]).splitlines()) == 6
    with pytest.raises(ValueError, match=r"c\.json and .*a\.json are one run"):
        results_table(paths)


def test_the_scores_in_the_quickstart_come_from_records():
    """Each `sacreBLEU <score> <signature>` of the page is the last line of a recorded run."""
    page = (DOCS / "start" / "quickstart.md").read_text()
    records = [json.loads(path.read_text()) for path in DOCS.glob("records/*/*.json")]
    lines = {
        f"sacreBLEU {r['metrics']['sacrebleu']} {r['signature']}"
        for r in records
        if "sacrebleu" in r["metrics"]
    }
    found = re.findall(r"sacreBLEU [\d.]+ nrefs[^\s`]+", page)
    assert found and set(found) <= lines
