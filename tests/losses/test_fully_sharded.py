"""A head under FSDP: as a part of a sharded model, and as a unit of its own, on two processes."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from highrank_plugins.heads import build_head

torch.set_num_threads(1)
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(8, 8)
        self.head = build_head("mixtape", num_classes=32, feature_dim=8, components=2, frequent=16)

    def forward(self, x, y, impl, method="__call__"):
        return getattr(self.head, method)(self.trunk(x), y, reduction="sum", impl=impl).loss

def build():
    torch.manual_seed(0)
    return Model()

x, y = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), torch.arange(5)
for impl in ("chunked", "fused", "cpp"):
    for unit, method in ((False, "nll"), (True, "__call__"), (True, "nll")):
        plain, model = build(), build()
        if unit:
            fully_shard(model.head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if unit and method == "nll":
            try:
                model(x, y, impl, method)
            except ValueError as error:
                assert "call head(features, target) instead" in str(error), error
                continue
            raise AssertionError("not refused")
        model(x, y, impl, method).backward()
        plain(x, y, impl).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
dist.destroy_process_group()
print("same")
"""


def test_two_sharded_processes_match_one(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    meeting = str(tmp_path / "meeting")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), meeting], cwd=Path(__file__).parents[2],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in running:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0 and out.endswith("same\n"), error
