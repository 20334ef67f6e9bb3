"""Mix a model with the continuous cache of Grave et al. 2017, which favours recent words."""

from __future__ import annotations

import math
from itertools import count

import torch
from torch import Tensor

BLOCK = 256  # tokens scored at a time, which takes BLOCK × (window + BLOCK) numbers


class NeuralCache:
    """Compute P(x) = (1 − λ) P_model(x) + λ Σ_i a_i [w_i = x],  a = softmax_i(θ h_i·h_t).

    i runs over the `window` positions before t; w_i is the word that came after h_i. A text may
    be passed in pieces of any size, with the same result.

    The first `window` tokens of a text fill the cache and are scored by the model alone. From then
    on the cache is full, and every token is compared with exactly `window` pairs.

    Args:
        theta: θ, how sharply the cache attends; 0 weighs all words of the window equally.
        lamb: λ in [0, 1), the weight of the cache.
        window: number of pairs, at least 1.
    Attributes:
        hidden, words: the pairs, [n, F] and int64 [n] with n ≤ window; None before the first piece.
            Set them to continue from another cache.
    """

    def __init__(self, theta: float, lamb: float, window: int) -> None:
        if not math.isfinite(theta):
            raise ValueError(f"theta must be a number, got {theta}")
        if not 0 <= lamb < 1:
            raise ValueError(f"lamb must lie in [0, 1), got {lamb}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.theta, self.lamb, self.window = theta, lamb, window
        self.hidden: Tensor | None = None
        self.words: Tensor | None = None

    @torch.no_grad()
    def log_probs(
        self, hidden: Tensor, target: Tensor, model_log_probs: Tensor,
        whole: dict[int, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return log P(target) [T] of the next T tokens of the text, and add them to the cache.

        Args:
            hidden: h_t, the last layer's outputs before dropout, [T, F], float32 or float64.
            target: the words after them, int64 [T].
            model_log_probs: log P_model(target), [T].
            whole: log P_model of all words [M] of some tokens, by number; log P takes their place.
        """
        if hidden.dim() != 2 or not hidden.shape[:1] == target.shape == model_log_probs.shape:
            raise ValueError(
                "expected hidden [T, F], target [T] and model_log_probs [T], got "
                f"{list(hidden.shape)}, {list(target.shape)} and {list(model_log_probs.shape)}"
            )
        pieces = zip(*(t.split(BLOCK) for t in (hidden, target, model_log_probs)), strict=True)
        found, whole = [], {} if whole is None else whole
        for start, (outputs, words, scores) in zip(count(0, BLOCK), pieces, strict=False):
            own = {n - start: row for n, row in whole.items() if 0 <= n - start < BLOCK}
            found.append(self._block(outputs, words, scores, own))
            whole.update({n + start: row for n, row in own.items()})
        return torch.cat(found)

    def _block(
        self, hidden: Tensor, target: Tensor, model_log_probs: Tensor, whole: dict[int, Tensor]
    ) -> Tensor:
        known, keys, words = self._remember(hidden, target)
        order = torch.arange(keys.size(0), device=keys.device)
        distance = order[known:].unsqueeze(1) - order
        outside = (distance < 1) | (distance > self.window)
        scores = (hidden @ keys.t()).mul_(self.theta).masked_fill_(outside, -math.inf)
        total = scores.logsumexp(-1)
        for n, row in whole.items():
            pointer = torch.zeros_like(row).index_add(0, words, (scores[n] - total[n]).exp())
            whole[n] = self._mix(row, pointer.log(), order[known + n])
        pointer = scores.masked_fill_(words != target.unsqueeze(1), -math.inf).logsumexp(-1) - total
        return self._mix(model_log_probs, pointer, order[known:])

    def _mix(self, model_log_probs: Tensor, pointer: Tensor, place: Tensor) -> Tensor:
        weight = math.log(self.lamb) if self.lamb else -math.inf
        mixed = torch.logaddexp(model_log_probs + math.log1p(-self.lamb), pointer + weight)
        # before the cache is full, a row may have nothing to attend to; discard its NaN
        return torch.where(place < self.window, model_log_probs, mixed)

    def _remember(self, hidden: Tensor, target: Tensor) -> tuple[int, Tensor, Tensor]:
        """Return the former number of pairs, and all with the new ones; keep the last `window`."""
        known, keys, words = 0, hidden, target
        if self.hidden is not None and self.words is not None:
            known = len(self.words)
            keys, words = torch.cat([self.hidden, hidden]), torch.cat([self.words, target])
        # clone, because views would keep older pairs in memory
        self.hidden, self.words = keys[-self.window :].clone(), words[-self.window :].clone()
        return known, keys, words
