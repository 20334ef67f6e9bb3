"""Arrange a text as parallel streams in chunks, and carry the recurrent state between chunks.

N tokens t_1 … t_N are predicted, each exactly once: t_1 from an end of sentence, every other one
from the token before it. The S streams are consecutive runs of the text whose lengths differ by at
most one token. Shorter ones end with padding, which is not predicted.

A state is tensors in nested lists or tuples; each has the streams in its last dimension but one.
"""

from collections.abc import Collection, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.distributed import utils as distributed
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_map_only

from highrank_plugins.common.user_error import UserError

STREAMS = -2  # dimension of a state that counts the streams
map_tensors = partial(tree_map_only, Tensor)  # of a state by a function; None stays None


class Chunk(NamedTuple):
    """Mark positions `start` … `start + length − 1` of all streams; `drawn` is the uncut length."""

    start: int
    length: int
    drawn: int


def chunk_plan(
    total: int, bptt: int, rng: np.random.RandomState | None = None, longest: int | None = None
) -> list[Chunk]:
    """Cut streams of `total` positions into chunks that cover each once; the last is the remainder.

    Without `rng` each has length L = `bptt`. Else lengths are drawn as in Merity et al. 2018:
    int(N(L, 5)) with probability 0.95, otherwise int(N(L/2, 5)), at least 5 and at most `longest`.
    """
    chunks, start = [], 0
    while start < total:
        drawn = bptt
        if rng is not None:
            mean = bptt if rng.random_sample() < 0.95 else bptt / 2
            drawn = max(5, int(rng.normal(mean, 5)))
            drawn = drawn if longest is None else min(drawn, longest)
        length = min(drawn, total - start)
        chunks.append(Chunk(start, length, drawn))
        start += length
    return chunks


class SplitTokens(FairseqDataset):
    """Hold all tokens of a split, [N], in order."""

    counts_tokens = True  # lengths count tokens, not sentences

    def __init__(self, tokens: Tensor, split: str) -> None:
        self.tokens, self.split = tokens, split

    def __len__(self) -> int:
        return len(self.tokens)


class Streams(FairseqDataset):
    """Hold the streams of one process; an index is a `Chunk`, an item a batch.

    All processes together have `count` streams; this one has part `shard` of `num_shards` parts, as
    equal as may be. A chunk of length `bptt` has the full learning rate.
    """

    def __init__(
        self,
        text: SplitTokens,
        dictionary: Dictionary,
        count: int,
        shard: int,
        num_shards: int,
        bptt: int,
    ) -> None:
        total = len(text)
        if total < count:
            raise UserError(
                f"{text.split}: {total} tokens cannot fill {count} streams; take fewer "
                "(--batch-size times processes, or --eval-streams)"
            )
        self.count, self.bptt = count, bptt
        self.pad = dictionary.pad()
        self.length = -(-total // count)
        self.full = total - count * (self.length - 1)  # streams that need no padding
        rows = np.array_split(np.arange(count), num_shards)[shard]
        self.rows = range(rows[0], rows[-1] + 1) if len(rows) else range(0)
        source = torch.cat([text.tokens.new_tensor([dictionary.eos()]), text.tokens[:-1]])
        self.source, self.target = self._cut(source), self._cut(text.tokens)

    def _cut(self, tokens: Tensor) -> Tensor:
        """Return the rows of this process, [rows, length], at least one of padding.

        All processes must compute the same number of batches.
        """
        cut = tokens.new_full((max(1, len(self.rows)), self.length), self.pad)
        for row, stream in zip(cut, self.rows, strict=False):
            start = stream * self.length - max(0, stream - self.full)
            size = self.length if stream < self.full else self.length - 1
            row[:size] = tokens[start : start + size]
        return cut

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, chunk: Chunk) -> dict:
        start, length, drawn = chunk
        source = self.source[:, start : start + length].contiguous()
        target = self.target[:, start : start + length].contiguous()
        padded = self.count - self.full if start + length == self.length else 0
        return {
            "id": self.rows.start + torch.arange(len(source)),
            "nsentences": len(self.rows),
            "ntokens": int(target.ne(self.pad).sum()),
            "net_input": {"src_tokens": source, "src_lengths": torch.full((len(source),), length)},
            "target": target,
            "position": start,
            "lr_scale": drawn / self.bptt,
            # in proportion to rows; penalties per process are weighted by it, so their sum is the
            # mean over all streams, however these are distributed
            "tokens_per_process": (self.count * length - padded) * len(self.rows) / self.count,
        }

    def collater(self, items: list[dict]) -> dict:
        (batch,) = items
        return batch


class ScoredStreams:
    """Give all `batches` one object at `net_input["carried"]`: `states` of each model.

    fairseq's scorer has no state: `TargetScores` reads and updates it. It is no dictionary, since
    fairseq copies dictionaries when it moves a batch to a GPU.
    """

    def __init__(self, batches: Collection[dict]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict]:
        carried = SimpleNamespace(states={})
        for batch in self.batches:
            batch["net_input"]["carried"] = carried
            yield batch


class CarriedState:
    """Hold the states after the chunks of an update, and the one before these, by position.

    They are kept because fairseq computes all chunks of an update again after an overflow, with
    --amp even after the optimizer's step. They are removed when the streams continue.
    """

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}
        self.settled = False  # the update is finished, unless its first chunk comes next

    def give(self, batch: dict) -> None:
        """Put the state into `batch["net_input"]["state"]`; None at the start of the streams."""
        position = batch["position"]
        if position == 0:
            self.states = {}
        elif self.settled and position == self.position:
            self.states = {position: self.states[position]}
        elif position not in self.states:
            raise UserError(
                f"the recurrent state at position {position} of the streams is lost. A "
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

    @property
    def position(self) -> int:
        """Return where the streams continue; 0 before the first chunk."""
        return max(self.states, default=0)


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
