"""A recipe whose training runs on two processes: of this machine, of two nodes, of a SLURM job."""

import json

import pytest

from tests.free_port import free_port
from tests.recipes.running import (
    REPOSITORY,
    begin,
    overrides,
    raw_text,
    recipe,
    refused,
    run,
    stages_done,
)
from tests.training.launch.slurm import miniature

NAME = "multi30k_en_de"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def launched(tmp_path, launch: str, *words: object, **changes: object) -> list[str]:
    where = ["--data", raw_text(tmp_path / "data"), "--text", "any", "--exp-dir", tmp_path / "exp"]
    where += ["--conf", "softmax", "--name", "a", f"--launch={launch}"]
    return recipe(NAME, *where, *words, settings=overrides(max_epoch=2, **changes))


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
