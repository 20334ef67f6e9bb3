"""Let processes that belong together train one model.

The meeting. What breaks: started by torchrun or srun where each process sees one GPU or none, N
processes train N models into one directory. Those that share a GPU, or wait for one that never
comes, hang. Why: `--distributed-world-size` is the number of visible GPUs, and one means "not
distributed". What we do: before the group is made, processes meet at its address within
`HIGHRANK_RENDEZVOUS_TIMEOUT` seconds (300). Each needs as many others as it expects, and a GPU of
its own. Delete when: never.

CPUs. What breaks: processes of torchrun without GPUs end with a `ZeroDivisionError`. Why: fairseq
takes the number of a GPU modulo their count. What we do: take device 0, gloo and legacy_ddp, as
`highrank launch` does. Delete when: fairseq does so.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch.distributed import DistError, PrefixStore, Store, rendezvous

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.processes import refuse_several
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
Note = dict[str, Any]
READING = timedelta(seconds=10)


@replaces(distributed_utils, "_infer_torch_distributed_launch_init")
def infer_torchrun(stock: Callable, cfg: Any) -> None:
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


def refuse_lone_ranks(cfg: Any) -> None:
    """Raise UserError if processes were started together, and each would train alone."""
    group = cfg.distributed_training
    is_local = str(group.distributed_init_method).startswith("tcp://localhost:")
    # each may start processes of its own, which meet on this machine
    spawns = is_local and not group.distributed_no_spawn
    remedy = "start `highrank launch` instead, once per node, which passes every option"
    refuse_several(os.environ, 1 if spawns else group.distributed_world_size, remedy)


@replaces(distributed_utils, "distributed_init")
def distributed_init(stock: Callable, cfg: Any) -> int:
    """Make the process group if the processes belong together; return the rank in it."""
    if torch.distributed.is_initialized():
        return stock(cfg)
    # The group's own store shares our server while we hold it. If we closed ours first, a fast
    # process could look for its group there just before it closes, and wait forever.
    store = meet(cfg)
    rank = stock(cfg)
    del store
    return rank


def meet(cfg: Any) -> Store:
    """Compare expectations with the other processes, and return the store that they used."""
    group = cfg.distributed_training
    rank, world = group.distributed_rank, group.distributed_world_size
    host, device, problem = socket.gethostname(), None, None
    if not cfg.common.cpu and torch.cuda.is_available():
        index, count = group.device_id, torch.cuda.device_count()
        if 0 <= index < count:
            device = str(torch.cuda.get_device_properties(index).uuid)
        else:
            problem = (
                f"rank {rank} on {host} should use --device-id {index}, but sees {count} GPUs: "
                "start one process per GPU"
            )
    note = {"host": host, "world_size": world, "device": device, "problem": problem}
    timeout = timedelta(seconds=float(os.environ.get("HIGHRANK_RENDEZVOUS_TIMEOUT", "300")))
    store = _reach(group.distributed_init_method, rank, world, timeout)
    notes = _exchange(store, rank, note, timeout)
    if problem := disagreement(notes):
        # rank 0 may host the store, so it leaves after all have read
        store.set(f"read/{rank}", "")
        if rank == 0:
            with suppress(RuntimeError):  # some processes may be missing
                store.wait([f"read/{other}" for other in range(world)], READING)
        raise UserError(problem)
    if rank == 0:
        places = ", ".join(f"{r}: {n['host']} {n['device'] or 'cpu'}" for r, n in enumerate(notes))
        logger.info("all %d processes have met (%s)", world, places)
    return store


def _reach(address: str, rank: int, world: int, timeout: timedelta) -> Store:
    try:
        store, _, _ = next(rendezvous(address, rank, world, timeout=timeout))
    except DistError as error:
        reason = str(error).partition("\n")[0]
        if address == "env://":
            address = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"rank {rank} of {world} did not meet the others at {address} ({reason}): fewer were "
            "started, or with another --distributed-world-size, the port is taken by another "
            "program, or the node of rank 0 is unreachable"
        ) from None
    return PrefixStore("joined", store)


def _exchange(store: Store, rank: int, note: Note, timeout: timedelta) -> list[Note]:
    """Return the notes of all ranks, or those so far if one expects another number of ranks."""
    keys = [f"note/{other}" for other in range(note["world_size"])]
    store.set(keys[rank], json.dumps(note))
    deadline = time.monotonic() + timeout.total_seconds()
    notes: list[Note] = []
    for key in keys:
        try:
            store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.1)))
        except RuntimeError:  # a store in a file raises no DistError
            missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
            raise UserError(
                f"rank {rank} of {len(keys)} waited {timeout.total_seconds():.0f} s for the ranks "
                f"{', '.join(missing)}: fewer processes were started than --distributed-world-size "
                "says, or their nodes cannot reach this one"
            ) from None
        notes.append(json.loads(store.get(key)))
        if notes[-1]["world_size"] != note["world_size"]:
            return [*notes, note]
    return notes


def disagreement(notes: list[Note]) -> str | None:
    """Return why processes with these notes cannot train one model, if they cannot."""
    sizes = {note["world_size"] for note in notes}
    if len(sizes) > 1:
        return f"processes disagree on --distributed-world-size: {sorted(sizes)}"
    if problems := [str(note["problem"]) for note in notes if note["problem"]]:
        return problems[0]
    without = [rank for rank, note in enumerate(notes) if note["device"] is None]
    if 0 < len(without) < len(notes):
        rank = without[0]
        return (
            f"rank {rank} on {notes[rank]['host']} sees no GPU, but others do: check "
            "nvidia-smi there, or train without GPUs (--cpu)"
        )
    places = [(note["host"], note["device"]) for note in notes]
    for rank, (host, device) in enumerate(places):
        other = places.index((host, device))
        if device is not None and other != rank:
            return (
                f"ranks {other} and {rank} are both on GPU {device} of {host}: "
                "every process needs its own; start one per GPU"
            )
    return None
