"""N processes that should train one model together train N models into one directory.

What breaks: started by torchrun or srun where each process sees one GPU or none, every process
trains alone, with exit code 0, and they overwrite each other's checkpoints. Processes that share a
GPU, or that wait for one that never comes, hang or end with an error of NCCL.
Why: `--distributed-world-size` is by default the number of visible GPUs, and one GPU means "not
distributed". The process group is made with a time limit of many minutes, and gives no reason.
What we do: before the group is made, processes meet at its address and exchange what they expect.
Each must be there within `HIGHRANK_RENDEZVOUS_TIMEOUT` seconds (300). It must expect as many others
as the rest do, and have a GPU of its own. All of them raise the same error otherwise. One that
trains alone although it was started with others refuses to. `highrank launch` passes every option.
Delete when: never.
"""

import json
import logging
import os
import socket
import time
from argparse import Namespace
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from torch.distributed import DistError, PrefixStore, Store, rendezvous

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.processes import refuse_several
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
Note = dict[str, Any]
READING = timedelta(seconds=10)


@replaces(Trainer, "__init__")
def init(stock, trainer, cfg, *args, **kwargs) -> None:
    """Build the trainer; fail if ranks were launched together but are not in one process group."""
    refuse_lone_ranks(cfg)
    stock(trainer, cfg, *args, **kwargs)


def refuse_lone_ranks(cfg) -> None:
    """Raise UserError if processes were started together, and each would train alone."""
    group = cfg.distributed_training
    # each starts processes of its own, which meet on this machine
    spawns = not group.distributed_no_spawn
    alone = spawns and str(group.distributed_init_method).startswith("tcp://localhost:")
    world = 1 if alone else group.distributed_world_size
    if not cfg.common.tpu:
        remedy = "start `highrank launch` instead, once per node, which passes every option"
        refuse_several(os.environ, world, remedy)


@replaces(distributed_utils, "distributed_init")
def distributed_init(stock, cfg):
    """Make the process group if the processes belong together; return the rank in it."""
    is_new = not torch.distributed.is_initialized()
    if not is_new or isinstance(cfg, Namespace) or cfg.common.tpu:
        return stock(cfg)
    # The group's own store shares our server while we hold it. If we closed ours first, a fast
    # process could look for its group there just before it closes, and wait forever.
    store = meet(cfg)
    rank = stock(cfg)
    del store
    return rank


def meet(cfg) -> Store:
    """Compare expectations with the other processes, and return the store that they used."""
    group = cfg.distributed_training
    rank, world = group.distributed_rank, group.distributed_world_size
    note = {"host": socket.gethostname(), "world_size": world, **_device(cfg, rank)}
    timeout = timedelta(seconds=float(os.environ.get("HIGHRANK_RENDEZVOUS_TIMEOUT", "300")))
    store = _reach(group, timeout)
    notes = _exchange(store, rank, note, timeout)
    problem = disagreement(notes)
    if problem:
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


def _device(cfg, rank: int) -> Note:
    """Return the identity of this process's GPU, or why it cannot have it; None without a GPU."""
    if cfg.common.cpu or not torch.cuda.is_available():
        return {"device": None, "problem": None}
    index, count = cfg.distributed_training.device_id, torch.cuda.device_count()
    if 0 <= index < count:
        return {"device": str(torch.cuda.get_device_properties(index).uuid), "problem": None}
    problem = (
        f"rank {rank} on {socket.gethostname()} should use --device-id {index}, but sees "
        f"{count} GPUs: start one process per GPU"
    )
    return {"device": None, "problem": problem}


def _reach(group, timeout: timedelta) -> Store:
    address, rank, world = (
        group.distributed_init_method,
        group.distributed_rank,
        group.distributed_world_size,
    )
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
    problems = [str(note["problem"]) for note in notes if note["problem"]]
    if problems:
        return problems[0]
    without = [rank for rank, note in enumerate(notes) if note["device"] is None]
    if 0 < len(without) < len(notes):
        rank = without[0]
        return (
            f"rank {rank} on {notes[rank]['host']} sees no GPU, but others do: check "
            "nvidia-smi there, or train without GPUs (--cpu)"
        )
    seen: dict[tuple[str, str | None], int] = {}
    for rank, note in enumerate(notes):
        if note["device"] is None:
            break
        other = seen.setdefault((note["host"], note["device"]), rank)
        if other != rank:
            return (
                f"ranks {other} and {rank} are both on GPU {note['device']} of {note['host']}: "
                "every process needs its own; start one per GPU"
            )
    return None
