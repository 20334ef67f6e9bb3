"""Add relative positions to fairseq's self-attention."""

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from highrank_plugins.trunks import RelativeAttention


class RelativeSelfAttention(MultiheadAttention):
    """Attend with ``relative``; parameters and cache are the stock's.

    Made of a stock module by ``take_over``, so that stock's parameters keep their initial values.
    """

    relative: RelativeAttention

    @classmethod
    def take_over(cls, attention: MultiheadAttention, clip: int) -> None:
        """Turn a stock self-attention into this class."""
        attention.__class__ = cls  # fairseq's layers offer no way to be built with another class
        attention.relative = RelativeAttention(attention.head_dim, clip)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs [T, B, C]; weights [B, T, S] (mean of heads), [H, B, T, S] or None.

        Args:
            query: [T, B, C]; key and value are the same and not looked at.
            key_padding_mask: [B, T], true for padding.
            incremental_state: holds the keys and values of earlier steps; they are extended.
            attn_mask: [T, S], added to the logits.
        """
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (self._heads(project(query)) for project in projections)
        if incremental_state is not None:
            k, v, key_padding_mask = self._append(incremental_state, k, v, key_padding_mask)
        mask = _mask(attn_mask, key_padding_mask, like=q)
        contexts, weights = self.relative(q, k, v, mask, self.dropout_module)
        output = self.out_proj(contexts.permute(2, 0, 1, 3).flatten(-2))
        if need_head_weights:
            return output, weights.transpose(0, 1)
        return output, weights.mean(1) if need_weights else None

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape [T, B, C] to [B, H, T, d]."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _append(
        self, state: dict, k: Tensor, v: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return all keys, values [B, H, S, d] and padding [B, S] so far, in stock's cache."""
        saved = self._get_input_buffer(state)
        if "prev_key" in saved:
            k = torch.cat((saved["prev_key"], k), dim=2)
            v = torch.cat((saved["prev_value"], v), dim=2)
        padding = self._append_prev_key_padding_mask(
            padding, saved.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv=False
        )
        buffer = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        self._set_input_buffer(state, buffer)
        return k, v, padding


def _mask(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return what is added to the logits [B, H, T, S]."""
    if padding is None:
        return attn_mask
    # not −inf: before left padding ends (--left-pad-target) a query sees nothing else, and becomes
    # NaN; half of the lowest number leaves room for the logits
    lowest = torch.finfo(like.dtype).min / 2
    hidden = like.new_zeros(padding.shape).masked_fill(padding.bool(), lowest)
    hidden = hidden[:, None, None]
    return hidden if attn_mask is None else hidden + attn_mask
