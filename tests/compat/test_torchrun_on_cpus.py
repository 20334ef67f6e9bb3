"""Plain torchrun starts processes without GPUs."""

import pytest
import torch
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.distributed import utils

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
