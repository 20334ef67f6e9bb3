"""Plan the processes of a launch: their number, machines and command."""

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common.formatting import size
from highrank_plugins.common.processes import refuse_several, usable_cores
from highrank_plugins.training.launch.flags import check_command

PORT = 29500
LOOPBACK = "127.0.0.1"
STARTING_SECONDS = 60  # seconds to import torch on a busy machine


@dataclass(frozen=True)
class Plan:
    """Describe a training run on `nodes` × `per_node` processes.

    Attributes:
        command: `fairseq-train …`, without the options that `launch` adds.
        gpus: a GPU for each process, else CPU cores.
        rendezvous: HOST:PORT where the nodes meet; not used on one machine, whose processes meet
            in a file.
        log_dir: for `rank0.log`, `rank1.log`, …
        timeout: seconds within which all processes must meet.
        max_restarts: how often torchrun starts all processes again after one has failed.
        stall_timeout: seconds without a sign of life after which a process is ended; 0: never.
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
        if self.nodes > 1 and self.rendezvous is None:
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
    def threads(self) -> int:
        """Return the number of CPU threads for each process of this machine."""
        return max(1, usable_cores() // self.per_node)


def split_address(address: str) -> tuple[str, int]:
    """Return HOST:PORT as its parts."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"--rendezvous {address!r}: expected HOST:PORT, as in node1:{PORT}")
    return host, int(port)


def check_gpus(per_node: int) -> None:
    """Require a GPU of this machine for each process."""
    import torch

    count = torch.cuda.device_count()
    if per_node > count:
        raise ValueError(
            f"--gpus-per-node {per_node}: torch sees {count} GPUs on {socket.gethostname()}; "
            "--processes N trains on a CPU"
        )


def check_disk(folder: Path, gigabytes: float = 1.0) -> None:
    """Require free disk space for a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < gigabytes * 1e9:
        raise OSError(f"{folder}: only {size(free)} are free on its disk; free some space first")
