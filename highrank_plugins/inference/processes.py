"""Divide work among processes that torchrun starts, and gather their results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

PATIENCE = timedelta(days=7)  # the first process waits until the slowest is done


@dataclass(frozen=True)
class Processes:
    """Describe this process: number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    def share(self, total: int) -> range:
        """Return this process's range within 0 … total − 1; ranges follow the processes' order."""
        return range(total * self.rank // self.count, total * (self.rank + 1) // self.count)

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all processes, in order, in the first one; None in the others."""
        if self.count == 1:
            return [value]
        values = [None] * self.count if self.rank == 0 else None
        dist.gather_object(value, values)
        return values

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def started() -> Iterator[Processes]:
    """Yield the processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", 1))
    if count == 1:
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()
