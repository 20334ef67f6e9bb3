"""Plan the processes of a launch: their number, machines, command and environment."""

import hashlib
import os
import shlex
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common import heartbeat
from highrank_plugins.common.formatting import size
from highrank_plugins.common.processes import python, refuse_several, usable_cores
from highrank_plugins.training.launch.flags import check_command

PORT = 29500
RANK_MODULE = "highrank_plugins.training.launch.rank"


@dataclass(frozen=True)
class Plan:
    """Describe a training run on `nodes` × `per_node` processes.

    Attributes:
        command: `fairseq-train …`, without the options that `launch` adds.
        gpus: a GPU for each process, else CPU cores.
        rendezvous: HOST:PORT where several nodes meet.
        timeout: seconds within which all processes must meet.
        max_restarts: how often all processes start again after one has failed.
        stall_timeout: seconds without a sign of life after which a process ends; 0: never.
    """

    command: tuple[str, ...]
    log_dir: Path
    nodes: int = 1
    per_node: int = 1
    gpus: bool = True
    rendezvous: str | None = None
    timeout: int = 300
    max_restarts: int = 0
    stall_timeout: int = 0

    def __post_init__(self) -> None:
        check_command(self.command)
        if self.rendezvous is not None:
            split_address(self.rendezvous)

    @property
    def world_size(self) -> int:
        """Return the number of processes in all."""
        return self.nodes * self.per_node

    def check_meeting(self) -> None:
        """Require an address for several nodes to meet at (SLURM finds one itself)."""
        if self.nodes == 1:
            refuse_several(os.environ, 1, "start this command once, or pass --nodes N")
        elif self.rendezvous is None:
            raise ValueError(
                f"--nodes {self.nodes}: name the address where they meet, the same on every "
                f"node: --rendezvous HOST:PORT, where HOST is one of them (PORT {PORT} will "
                "usually do)"
            )

    @property
    def finished(self) -> Path:
        """Return a file that exists once the training run is complete, and not before."""
        return self.log_dir / "finished"

    @property
    def run_id(self) -> str:
        """Return a name that tells training runs at one address apart; equal commands share it.

        It is not secret: every client of the store can list its keys.
        """
        return f"highrank-{hashlib.sha256(shlex.join(self.command).encode()).hexdigest()[:12]}"


def split_address(address: str) -> tuple[str, int]:
    """Return HOST:PORT as its parts."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"--rendezvous {address!r}: expected HOST:PORT, as in node1:{PORT}")
    return host, int(port)


def check_machine(plan: Plan) -> None:
    """Require a GPU of this machine for each process, and disk space for their logs."""
    if plan.gpus:
        import torch

        count = torch.cuda.device_count()
        if plan.per_node > count:
            raise ValueError(
                f"--gpus-per-node {plan.per_node}: torch sees {count} GPUs on "
                f"{socket.gethostname()}; --processes N trains on a CPU"
            )
    plan.log_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(plan.log_dir).free
    if free < 1e9:
        raise OSError(
            f"{plan.log_dir}: only {size(free)} are free on its disk; free some space first"
        )


def rank_words(plan: Plan, init_method: str = "env://") -> list[str]:
    """Return the command of one process; its environment says which one it is."""
    return [
        *python("-m", RANK_MODULE),
        *("--init-method", init_method),
        *("--world-size", str(plan.world_size), "--log-dir", str(plan.log_dir)),
        *([] if plan.gpus else ["--cpu"]),
        *("--", *plan.command),
    ]


def environment(plan: Plan) -> dict[str, str]:
    """Return what is added to the launcher's environment for the processes."""
    threads = str(max(1, usable_cores() // plan.per_node))
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "HIGHRANK_RENDEZVOUS_TIMEOUT": str(plan.timeout),
        heartbeat.TIMEOUT: str(plan.stall_timeout),
        "PYTHONUNBUFFERED": "1",
    }
    if plan.nodes == 1:
        # not reachable from other machines, or through this one's network address
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, "lo")
    else:
        # torchrun's default for --rdzv-id: other users can read a command line
        variables["PET_RDZV_ID"] = plan.run_id
        # otherwise restarted processes read stale addresses in torchrun's own store
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # fairseq uses any GPU that it sees
    return variables if plan.gpus else variables | {"CUDA_VISIBLE_DEVICES": ""}
