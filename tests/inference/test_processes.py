"""Two processes, each with a part of the text, have the results and files of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from highrank_plugins.inference.collector import Processes, read_collection
from tests.cli import highrank
from tests.fairseq_cli import FORKS, REPOSITORY
from tests.free_port import free_port
from tests.inference.checkpoints import write_checkpoint
from tests.tasks.built import build

MEASURES = "spectrum,kld,context-dependence,predictions,components,retention"
OPTIONS = ["--dtype", "float64", "--pairs", "50", "--bands", "2,5"]
SIZE = ["--tokens", "60", "--segment", "20"]
VOLATILE = ("command", "versions", "git", "hardware", "processes")

pytestmark = pytest.mark.xdist_group("processes")  # they share collected files


@pytest.fixture(scope="module")
def files(stream_data, tmp_path_factory):
    """Return checkpoint and data, as words of a command line."""
    built = build(stream_data, "--head-components", 2, arch="awd_lstm_lm_mos")
    path = write_checkpoint(tmp_path_factory.mktemp("mos") / "a.pt", built)
    return [str(path), str(stream_data)]


def run_rank(words, rank, port):
    """Run a rank as torchrun does, but forked from a process that has imported fairseq."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ |= place | {"RANK": str(rank)}
    sys.exit(highrank(*words).exit_code)


def test_two_processes_give_the_measures_of_one(files, tmp_path):
    words, port = ["measure", MEASURES, *files, *SIZE, *OPTIONS, "--output"], str(free_port())
    two = [*words, str(tmp_path / "two")]
    ranks = [FORKS.Process(target=run_rank, args=(two, rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]
    done = highrank(*words, str(tmp_path / "one"))
    assert done.exit_code == 0, done.output
    assert len([*(tmp_path / "one").iterdir()]) == 6
    for path in (tmp_path / "one").iterdir():
        one, two = (
            flat(json.loads((tmp_path / of / path.name).read_text())) for of in ("one", "two")
        )
        assert two == pytest.approx(one, rel=1e-6, abs=1e-9), path.name
    for count in (1, 2, 3, 7):
        shares = [Processes(rank, count).share(7) for rank in range(count)]
        assert [i for share in shares for i in share] == list(range(7))
        assert min(map(len, shares)) >= 7 // count


def flat(value, place=""):
    """Return numbers and words of a result by their places."""
    if not isinstance(value, dict | list):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    found = [flat(part, f"{place}.{name}") for name, part in parts if name not in VOLATILE]
    return {place: value for part in found for place, value in part.items()}


def test_torchrun_writes_the_memory_maps_of_one_process(files, tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")
    words = ["analyse", "collect", *files, *SIZE, "--output"]
    line = [torchrun, "--standalone", "--nproc-per-node=2", "-m", "highrank_plugins.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*line, tmp_path / "two"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count('"rows": 60') == 1
    words.append(str(tmp_path / "one"))
    assert highrank(*words).exit_code == 0
    one, two = read_collection(tmp_path / "one"), read_collection(tmp_path / "two")
    assert one.keys() == two.keys() == {"log_probs", "features", "targets"}
    assert all(np.allclose(one[name], two[name], rtol=1e-6) for name in one)
    described = [(tmp_path / name / "collection.json").read_text() for name in ("one", "two")]
    assert described[0] == described[1]
