"""Run one process of a training run: `python -m …launch.rank --world-size N … -- fairseq-train …`.

`highrank launch`, its torchrun or srun starts it, and passes its rank in the environment. It
becomes fairseq-train with all options that follow from that.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import highrank_plugins
from highrank_plugins.common import heartbeat, stop_request
from highrank_plugins.common.files import open_own
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.training.launch.plan import option


class Place(NamedTuple):
    """Say which process of a training run this is."""

    rank: int
    world_size: int
    local_rank: int  # on its machine
    address: str = "env://"  # where all processes meet; or `tcp://HOST:PORT`


def distributed_flags(place: Place, visible_gpus: int | None, command: Sequence[str]) -> list[str]:
    """Return all distributed options that fairseq needs; a process without a GPU sees None."""
    # each process sees one GPU, which is number 0 to it
    device = 0 if visible_gpus in (None, 1) else place.local_rank
    flags = [
        *("--distributed-init-method", place.address),
        *("--distributed-world-size", str(place.world_size)),
        *("--distributed-rank", str(place.rank)),
        "--distributed-no-spawn",
        *("--device-id", str(device)),
        *("--distributed-backend", "gloo" if visible_gpus is None else "nccl"),
    ]
    if option(command, "--ddp-backend") is None:
        flags += ["--ddp-backend", "legacy_ddp" if visible_gpus is None else "pytorch_ddp"]
    return flags


def main(words: Sequence[str] | None = None) -> None:
    """Train as the process that the environment names."""
    end_with_parent(int(os.environ.get(stop_request.LAUNCHED, 0)))
    stop_request.ignore()  # spares `tee`, which would lose the end of the log
    parser = argparse.ArgumentParser(prog="rank", allow_abbrev=False)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(words)
    place = find_place(os.environ, options.world_size, options.init_method)
    write_to_log(Path(options.log_dir), place.rank)
    heartbeat.guard(place.rank)
    stop_request.listen()
    gpus = None
    if not options.cpu:
        import torch

        gpus = torch.cuda.device_count()
    line = [*options.command, *distributed_flags(place, gpus, options.command)]
    print(f"+ {shlex.join(line)}", flush=True)
    highrank_plugins.register()  # our models and workarounds, whatever --user-dir there is
    from fairseq_cli.train import cli_main

    sys.argv = line
    cli_main()


def find_place(environment: Mapping[str, str], planned: int, address: str) -> Place:
    """Return which process this is; refuse another number of them than `planned`."""
    if stop_request.LAUNCHED in environment:  # srun may have started the launcher
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_PROCID" in environment:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    else:
        raise ValueError("a launcher must start this process: use `highrank launch`")
    rank, world_size, local_rank = (int(environment[name]) for name in names)
    if world_size != planned:
        raise ValueError(
            f"rank {rank}: {world_size} processes were started, but {planned} were planned: "
            "--nodes × --gpus-per-node must equal the number of processes of the job"
        )
    return Place(rank, world_size, local_rank, address)


def write_to_log(folder: Path, rank: int) -> None:
    """Append this process's output to `rank<N>.log`; show that of rank 0 as well."""
    path = folder / f"rank{rank}.log"
    output: IO[bytes] = open_own(path, "ab")
    if rank == 0:
        output.close()
        tee = subprocess.Popen(["tee", "--append", "--", str(path)], stdin=subprocess.PIPE)
        assert tee.stdin is not None
        output = tee.stdin
    # close the object: a bare number would be closed again later, when it is another file's
    with output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


if __name__ == "__main__":
    main()
