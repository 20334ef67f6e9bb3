"""Processes of torchrun that see no GPU end with a `ZeroDivisionError`.

What breaks: `torchrun --nproc-per-node 2 $(which fairseq-train) … --distributed-world-size 2 --cpu`
ends with a traceback before it trains.
Why: fairseq computes the number of each process's GPU modulo the number of GPUs, which is 0. Its
defaults for the back-end (nccl) and the model of several processes (pytorch_ddp) need GPUs, too.
What we do: without GPUs, take device 0, gloo and legacy_ddp, as `highrank launch` does.
Delete when: fairseq does so.
"""

import os

import torch
from fairseq.distributed import utils

from highrank_plugins.common.patching import replaces


@replaces(utils, "_infer_torch_distributed_launch_init")
def infer_torchrun(stock, cfg) -> None:
    """Set the options that follow from the environment of torchrun."""
    if torch.cuda.device_count() > 0:
        stock(cfg)
        return
    cfg.distributed_init_method = "env://"
    cfg.distributed_world_size = int(os.environ["WORLD_SIZE"])
    cfg.distributed_rank = int(os.environ["RANK"])
    cfg.device_id = 0
    cfg.distributed_backend = "gloo"
    cfg.distributed_no_spawn = True
    if cfg.ddp_backend == "pytorch_ddp":
        cfg.ddp_backend = "legacy_ddp"
