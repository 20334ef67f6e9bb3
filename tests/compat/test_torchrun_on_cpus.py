"""Test compat/torchrun_on_cpus.py: plain torchrun, which loses nothing when it is told to end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.distributed import utils

import highrank_plugins
from tests.training.launch.trainings import command
from tests.trainings import last

PROGRAMS = Path(sys.executable).parent
PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(("given", "chosen"), [("pytorch_ddp", "legacy_ddp"), ("slowmo", "slowmo")])
def test_processes_without_gpus_use_backends_that_run_on_cpus(monkeypatch, given, chosen):
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cfg = DistributedTrainingConfig(distributed_world_size=2, ddp_backend=given, tpu=False)
    utils.infer_init_method(cfg)
    assert (cfg.distributed_rank, cfg.distributed_world_size, cfg.device_id) == (1, 2, 0)
    assert (cfg.distributed_backend, cfg.ddp_backend) == ("gloo", chosen)
    assert cfg.distributed_no_spawn and cfg.distributed_init_method == "env://"


@pytest.mark.long  # recipes/test_stopping.py and hooks/test_preemption.py stop trainings always
def test_torchrun_saves_when_it_is_told_to_stop(mt_data, tmp_path):
    program, *words = command(mt_data, tmp_path / "exp")
    torchrun = [PROGRAMS / "torchrun", "--standalone", "--nproc-per-node", "2", PROGRAMS / program]
    plugins = ["--user-dir", Path(highrank_plugins.__file__).parent]
    log = tmp_path / "log"
    with log.open("w") as file:
        training = subprocess.Popen(
            [*torchrun, *words, *plugins, "--cpu", "--distributed-world-size", "2"],
            stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    while "num_updates=7," not in log.read_text():
        assert training.poll() is None, log.read_text()
        time.sleep(0.05)
    training.send_signal(signal.SIGTERM)
    training.wait(20)
    assert "stopping after update" in log.read_text()
    state = torch.load(last(tmp_path / "exp"), weights_only=True)
    updates = state["optimizer_history"][-1]["num_updates"]
    assert f"stopping after update {updates};" in log.read_text()
