"""Carry the recurrent state from one chunk of the streams to the next.

A state is tensors in nested lists or tuples; each has the streams in its last dimension but one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed
from torch import Tensor
from torch.nn.functional import pad

STREAMS = -2  # dimension of a state that counts the streams


class CarriedState:
    """Hold the states after the chunks of an update, and the one before these, by position.

    They are kept because fairseq computes all chunks of an update again after an overflow, with
    --amp even after the optimizer's step. They are removed when the streams continue.
    """

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}
        self.settled = False

    def give(self, batch: dict) -> None:
        """Put the state into `batch["net_input"]["state"]`; None at the start of the streams."""
        position = batch["position"]
        if position == 0:
            self.states = {}
        elif self.settled and position == self.position:
            self.states = {position: self.states[position]}
        elif position not in self.states:
            known = f"; known positions: {sorted(self.states)}" if self.states else ""
            raise RuntimeError(
                f"the recurrent state at position {position} of the streams is lost{known}. A "
                "batch was skipped (out of memory?), or this run resumes with other data, "
                "--bptt… or --seed, or from a checkpoint without a state: restart the epoch "
                "with --reset-dataloader"
            )
        self.settled = False
        device = batch["target"].device
        state = self.states[position] if position else None
        batch["net_input"]["state"] = map_tensors(lambda t: t.to(device), state)

    def take(self, batch: dict) -> None:
        """Keep `batch["next_state"]`, detached."""
        position = batch["position"]
        after = map_tensors(Tensor.detach, batch.pop("next_state"))
        del batch["net_input"]["state"]
        self.states[position + batch["target"].size(1)] = after

    def settle(self) -> None:
        """Finish the update, unless its first chunk comes next."""
        self.settled = True

    @property
    def position(self) -> int:
        """Return where the streams continue; 0 before the first chunk."""
        return max(self.states, default=0)


def map_tensors(function: Callable[[Tensor], Any], state: Any) -> Any:
    """Apply `function` to each tensor of a nesting; None stays None."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    return [map_tensors(function, part) for part in state]


def gather_streams(state: Any, count: int) -> Any:
    """Gather the state of all `count` streams, on the CPU. Every process must call it."""
    if not torch.distributed.is_initialized():
        return map_tensors(Tensor.cpu, state)
    group = distributed.get_data_parallel_group()
    shares = np.array_split(np.arange(count), distributed.get_world_size(group))

    def gather(tensor: Tensor) -> Tensor:
        own = pad(tensor, (0, 0, 0, len(shares[0]) - tensor.size(STREAMS)))  # all have one size
        parts = [torch.empty_like(own) for _ in shares]
        torch.distributed.all_gather(parts, own.contiguous(), group=group)
        rows = zip(parts, map(len, shares), strict=True)
        return torch.cat([part.narrow(STREAMS, 0, size) for part, size in rows], STREAMS).cpu()

    return map_tensors(gather, state)


def streams_of(state: Any, rows: range) -> Any:
    """Return the part of a gathered state that belongs to `rows`."""
    return map_tensors(lambda t: t.narrow(STREAMS, rows.start, len(rows)).clone(), state)
