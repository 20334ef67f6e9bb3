"""A recipe from raw text to its score: killed in training, resumed, repeated, changed; and on
two processes: of this machine, of two nodes, of a SLURM job."""

import json
from types import SimpleNamespace

import pytest
import torch

import highrank_plugins
from tests.free_port import free_port
from tests.recipes.running import REPOSITORY, begin, kill_when, multi30k, refused, run, stages_done
from tests.training.launch.slurm import miniature
from tests.trainings import parameters

highrank_plugins.register()  # admits the plain classes that fairseq stores

NAME = "multi30k_en_de"
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("whole_run")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Kill a training run, and run it to its end; return how to repeat it, and what it printed."""
    folder = tmp_path_factory.mktemp("whole run")  # a space in every path
    command, run_dir = multi30k(folder, conf="mixtape"), folder / "exp" / NAME / "a"
    kill_when(command, (run_dir / "train" / "checkpoint_last.pt").exists)
    return SimpleNamespace(folder=folder, command=command, run_dir=run_dir, result=run(command))


def test_training_resumes_after_the_kill_and_ends_in_a_score(whole):
    finished, run_dir = whole.result, whole.run_dir
    assert stages_done(finished) == [3, 4, 5, 6]
    log = (run_dir / "train" / "train.log").read_text()
    assert "Loaded checkpoint" in log
    assert list(run_dir.glob("train.before-*")) == []
    record = json.loads((run_dir / "results.json").read_text())
    assert record["train"]["epochs"] == 3 and record["train"]["words_per_second"] > 0
    *samples, last = finished.stdout.splitlines()
    assert last == f"sacreBLEU {record['metrics']['sacrebleu']} {record['signature']}"
    assert sum(row.startswith(" translation") for row in samples) == 5
    assert set(record["metrics"]) == {"sacrebleu", "chrf"}
    assert record["config"]["data"]["vocab_size"] == 200
    assert record["command"] == (run_dir / "train" / "command.sh").read_text().rstrip()
    assert len((run_dir / "score" / "test.de").read_text().splitlines()) == 20
    # the average of the last checkpoints translates
    assert "average/checkpoint.pt" in (run_dir / "generate" / "command.sh").read_text()
    averaged = parameters(run_dir / "average" / "checkpoint.pt")
    third, second = (parameters(run_dir / "train" / f"checkpoint{n}.pt") for n in (3, 2))
    assert not torch.equal(*(of["decoder.output_projection.weight"] for of in (second, third)))
    for name, value in averaged.items():
        torch.testing.assert_close(value, (second[name] + third[name]) / 2)
    again = run(whole.command)
    assert stages_done(again) == [] and again.stdout == finished.stdout


def launched(tmp_path, launch: str, *words: object, **changes: object) -> list[str]:
    return multi30k(tmp_path, f"--launch={launch}", *words, max_epoch=2, **changes)


@pytest.mark.long
def test_a_recipe_trains_on_two_processes(tmp_path):
    result = run(launched(tmp_path, "--processes 2", "--processes", 2))
    assert stages_done(result) == [0, 1, 2, 3, 4, 5, 6]
    run_dir = tmp_path / "exp" / NAME / "a"
    assert "training on 2 devices" in (run_dir / "train" / "train.log").read_text()
    assert (run_dir / "train" / "logs" / "rank1.log").stat().st_size > 0
    assert "highrank launch" in (run_dir / "train" / "command.sh").read_text()
    command = (run_dir / "generate" / "command.sh").read_text()
    assert "highrank evaluate generate --processes 2" in command
    assert len((run_dir / "score" / "test.de").read_text().splitlines()) == 20
    # without --effective-tokens half of the batch
    refused(launched(tmp_path, "--processes 1", "--stage", 4), "stage 3 (train) was run with other")
    words = ["--processes", 2, "--stage", 3, "--stop-stage", 3]
    other_batch = run(launched(tmp_path, "--processes 2", *words, launch__effective_tokens=2400))
    assert "options or inputs have changed; the earlier work is kept in" in other_batch.stderr
    assert "--update-freq 2: 2 processes × --max-tokens 600 × 2 = 2400" in other_batch.stderr


@pytest.mark.long
def test_a_recipe_on_two_nodes_says_what_to_run_on_the_other(tmp_path):
    meeting = f"--nodes 2 --processes 1 --rendezvous 127.0.0.1:{free_port()}"
    first = begin(launched(tmp_path, meeting))
    said = next(line for line in first.stderr if "on every other node: " in line)
    command = said.partition("on every other node: ")[2]
    run(["bash", "-c", command])
    rest = first.communicate()[1]
    assert first.returncode == 0, rest[-3000:]
    run_dir = tmp_path / "exp" / NAME / "a"
    assert "training on 2 devices" in (run_dir / "train" / "logs" / "rank0.log").read_text()
    assert json.loads((run_dir / "results.json").read_text())["train"]["updates"] > 0


@pytest.mark.long
def test_a_recipe_submits_its_training_to_slurm_and_continues_after_the_job(tmp_path):
    env = miniature(tmp_path)
    path = {"PATH": env["PATH"]}
    script = tmp_path / "job.sh"
    command = launched(tmp_path, f"--processes 2 --slurm {script} --submit")
    given = run(command, 75, **path)
    assert stages_done(given) == [0, 1, 2]
    assert "job 4242" in given.stderr
    assert "stage 3 (train) is incomplete; run the same command to resume it" in given.stderr
    (tmp_path / "queue").write_text("RUNNING")
    refused(command, "job 4242 of this run is still in the queue (RUNNING)", **path)
    run(["bash", script], folder=REPOSITORY, **env)
    result = run(command, **path)
    assert stages_done(result) == [3, 4, 5, 6]
    record = json.loads((tmp_path / "exp" / NAME / "a" / "results.json").read_text())
    assert record["train"]["updates"] > 0  # which only the log of the job's first process tells
    assert stages_done(run(command, **path)) == []


def test_changed_options_repeat_the_stages_that_depend_on_them(whole):
    """The beam changes the translations; measures that are asked for are in the record."""
    changes = {"generate__beam": 2, "spectrum__tokens": 200}
    changed = run(multi30k(whole.folder, conf="mixtape", **changes))
    assert stages_done(changed) == [5, 6]
    record = json.loads((whole.run_dir / "results.json").read_text())
    assert record["config"]["generate"]["beam"] == 2
    metrics = record["metrics"]
    assert 1 <= metrics["test_rank"] <= 200
    assert record["signatures"]["test_rank"].startswith("press|contexts:200|")
    left_out = record["ledger"]["spectrum"]["test.de"]["left out"]
    counted = record["ledger"]["data-bin"]["test.de"]["out"]
    assert left_out == {"after --tokens": {"tokens": counted["tokens"] - 200}}
