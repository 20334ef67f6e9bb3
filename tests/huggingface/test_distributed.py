"""Two processes with half of a batch each are one process with all of it (rows 15 to 17)."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

import torch.distributed as dist

from tests.free_port import free_port
from tests.huggingface.tiny import GREEDY, ids, make

STEPS = 3
CASES = [
    ("llama", "softmax", False), ("llama", "mixtape", False), ("llama", "mos_plif", False),
    ("llama", "mos", True), ("gpt2", "mos", True), ("qwen3", "mixtape", True),
]  # fmt: skip


def train(model, wrapped, rows):
    """Take steps on rows of a batch; return the mean loss of all processes at each."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(STEPS):
        batch = ids(4, 9, step)[rows]
        loss = wrapped(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def agree(wrap, sharded_head, without=None):
    """Compare wrapped models with a whole batch in one process, in float64."""
    rank = dist.get_rank()
    for name, head, tied in [case for case in CASES if case[1] != without]:
        one = make(name, head, tied).double()
        wanted = train(one, one, slice(None))
        model = make(name, head, tied).double()
        wrapped = wrap(model, sharded_head and not tied)
        model = model if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel) else wrapped
        losses = train(model, wrapped, slice(2 * rank, 2 * rank + 2))
        dist.all_reduce(losses)
        torch.testing.assert_close(losses / 2, wanted, rtol=0, atol=1e-12)
        parameters = dict(one.named_parameters(remove_duplicate=False))
        for key, parameter in model.named_parameters(remove_duplicate=False):
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            torch.testing.assert_close(whole, parameters[key], rtol=1e-10, atol=1e-12, msg=key)
        assert not tied or model.head.weight is model.get_input_embeddings().weight
        if sharded_head:
            wanted_ids = one.generate(ids(2, 4), **GREEDY)
            assert torch.equal(model.generate(ids(2, 4), **GREEDY, synced_gpus=False), wanted_ids)


def ddp(model, _):
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp2(model, own_unit):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (2,))
    layers = next(m for m in model.model.modules() if isinstance(m, torch.nn.ModuleList))
    for unit in [*layers, *([model.head] if own_unit else []), model]:
        fully_shard(unit, mesh=mesh)
    return model


def accelerate(model, efficient):
    """Call accelerate's own function: it sets its plugin on GPUs only."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
        cpu_ram_efficient_loading=efficient,
    )  # fmt: skip
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    seen = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), device=torch.device("cpu"),
        mixed_precision="no", is_main_process=dist.get_rank() == 0, torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=["fsdp"]),
        process_index=dist.get_rank(), num_processes=2,
    )  # fmt: skip
    return fsdp2_prepare_model(seen, model)


WAYS = {
    "row_15_ddp": lambda: agree(ddp, False),
    "row_16_fsdp2": lambda: agree(fsdp2, True),
    "row_17_accelerate": lambda: agree(accelerate, False),
    # its loading takes no buffers, such as Mixtape's order of the classes
    "row_17_accelerate_efficient": lambda: agree(
        lambda m, _: accelerate(m, True), False, "mixtape"
    ),
}


def run_all():
    from accelerate import Accelerator

    Accelerator(cpu=True)
    dist.init_process_group("gloo") if not dist.is_initialized() else None
    for name, way in WAYS.items():
        way()
        print(name, "agrees", flush=True)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def printed():
    """Run all ways in one pair of processes, since most of the time is their start."""
    pytest.importorskip("accelerate", reason="needs accelerate")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    code = "from tests.huggingface.test_distributed import run_all; run_all()"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    return "\n".join(process.communicate(timeout=240)[0] for process in processes)


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_are_one(way, printed):
    assert printed.count(f"{way} agrees") == 2, printed[-3000:]
