"""Draw the random numbers of one forward pass: dropout masks and gate noise.

They are drawn once for the whole batch, before a loss cuts it into chunks, so that one seed gives
one loss. Gaussian noise is too large to keep ((K−1)·S numbers per token), so only a seed is drawn.
Each block of tokens has its own generator, which draws for one gate after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.plan import Named

NOISE_BLOCK = 64  # number of tokens that share a generator
_VALUES = 2**16


@dataclass
class RandomState:
    """Draw masks and noise of tokens, in the order of the flattened batch.

    `masks[name]` is [R, width] with entries 0 or 1/(1 − p); token n uses row n % R. R is the number
    of tokens, or of columns of a time-major batch when the mask is locked over time. Only the state
    of a chunk, of the tokens start..stop−1, has noise. With an `index` these are not all tokens of
    the batch, but those with the numbers `index`, which rise.
    """

    masks: Named = field(default_factory=dict)
    noise_sd: float = 0.0
    noise_seed: int = 0
    start: int = 0
    stop: int = 0
    index: Tensor | None = None

    def rows(self, start: int, stop: int) -> RandomState:
        """Return the state of the tokens start..stop−1."""
        index = None if self.index is None else self.index[start:stop]
        masks = {name: self._rows(mask, start, stop) for name, mask in self.masks.items()}
        return RandomState(masks, self.noise_sd, self.noise_seed, start, stop, index)

    def _rows(self, mask: Tensor, start: int, stop: int) -> Tensor:
        is_cut = self.index is not None and len(mask) == len(self.index)  # by `of_tokens`
        if (self.index is None and stop <= len(mask)) or is_cut:
            return mask[start:stop]
        if self.index is None:
            return mask[torch.arange(start, stop, device=mask.device) % len(mask)]
        return mask[self.index[start:stop] % len(mask)]

    def of_tokens(self, index: Tensor) -> RandomState:
        """Return the state of the tokens with the numbers `index`, in place of the whole batch."""
        masks = self.masks.items()
        cut = {name: m[index % len(m)] if len(m) >= len(index) else m for name, m in masks}
        return replace(self, masks=cut, index=index)

    def dropout(self, name: str, x: Tensor) -> Tensor:
        """Return x [n, width] with the mask `name`, or x itself where no such mask was drawn."""
        mask = self.masks.get(name)
        return x if mask is None else x * mask

    def add_noise(self, x: Tensor) -> Tensor:
        """Return x [n, J, S] plus Gaussian noise; x itself without noise."""
        if not self.noise_sd:
            return x
        # half precision gets the same numbers, rounded
        wide = torch.promote_types(x.dtype, torch.float32)
        noise_JNS = x.new_empty((x.size(1), x.size(0), x.size(2)), dtype=wide)
        return x + noise_JNS.transpose(0, 1) if self.fill_with_noise(noise_JNS) else x

    def fill_with_noise(self, x_JNS: Tensor, first: int = 0) -> bool:
        """Write noise of n tokens, from `first` here, into x [J, n, S]; return whether it did."""
        if not (self.noise_sd and self.start < self.stop):
            return False
        # device meta, where `scripts/roofline.py` runs losses, has no generator
        device = "cpu" if x_JNS.is_meta else x_JNS.device
        numbers = range(self.start, self.stop) if self.index is None else self.index.tolist()
        at = 0
        here = numbers[first : first + x_JNS.size(1)]
        for block, members in groupby(here, lambda number: number // NOISE_BLOCK):
            rows: Any = [number % NOISE_BLOCK for number in members]
            start, at = at, at + len(rows)
            all_drawn = len(rows) == NOISE_BLOCK
            if rows[-1] - rows[0] == len(rows) - 1:
                rows = slice(rows[0], rows[-1] + 1)
            generator = torch.Generator(device).manual_seed(self.noise_seed + block)
            for x_NS in x_JNS:
                rows_NS = x_NS[start:at]
                whole = all_drawn and rows_NS.is_contiguous()
                drawn = rows_NS if whole else x_NS.new_empty(NOISE_BLOCK, x_NS.size(1))
                drawn.normal_(0, self.noise_sd, generator=generator)
                if not whole:
                    rows_NS.copy_(drawn[rows])
        return True


def sample_mask(leading: torch.Size, width: int, p: float, locked: bool, like: Tensor) -> Tensor:
    """Return a dropout mask [R, width] of features [*leading, F]; a row per column when locked."""
    rows = math.prod(leading[1:]) if locked and len(leading) > 1 else math.prod(leading)
    return dropout_mask((rows, width), p, like)


def dropout_mask(shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """Draw entries 0 with probability p, else 1/(1 − p), of the dtype and device of `like`.

    On a CPU torch draws 53 random bits for every entry, in 12 ns; DropConnect's masks took a
    twentieth of a training step of AWD-LSTM. Here 16 bits decide, and round p to 2^−16.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape).bernoulli_(1 - p).div_(1 - p)
    entries = math.prod(shape)
    words = like.new_empty(-(-entries // 4), dtype=torch.int64)
    words.random_(-(2**63), None)  # all 64 bits
    fair = words.view(torch.int16)[:entries]  # each from −2^15 to 2^15 − 1
    kept = max(1, round((1 - p) * _VALUES))
    mask = fair <= kept - _VALUES // 2 - 1
    return mask.view(*shape).to(like.dtype).div_(1 - p)
