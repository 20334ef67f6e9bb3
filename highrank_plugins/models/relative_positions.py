"""Give Transformers relative positions in self-attention, by the ``--rel-pos-…`` options."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.trunks import RelativeAttention


class RelativeSelfAttention(MultiheadAttention):
    """Attend with ``relative``; parameters and cache are the stock's."""

    relative: RelativeAttention

    def forward(
        self, query: Tensor, key: Tensor | None, value: Tensor | None,
        key_padding_mask: Tensor | None = None, incremental_state: dict | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return outputs [T, B, C], and weights [B, T, S] (mean of heads) if they are needed.

        The query [T, B, C] is also key and value. ``incremental_state`` holds those of earlier
        steps, and is extended; ``attn_mask`` [T, S] is added to the logits.
        """
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (self._heads(project(query)) for project in projections)
        if incremental_state is not None:
            k, v, key_padding_mask = self._append(incremental_state, k, v, key_padding_mask)
        mask = _mask(attn_mask, key_padding_mask, like=q)
        contexts, weights = self.relative(q, k, v, mask, self.dropout_module)
        output = self.out_proj(contexts.permute(2, 0, 1, 3).flatten(-2))
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
        saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        self._set_input_buffer(state, saved)
        return k, v, padding


def _mask(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return what is added to the logits [B, H, T, S]."""
    if padding is None:
        return attn_mask
    # not −inf: within left padding (--left-pad-target) a query sees nothing else and would become
    # NaN; half of the lowest number leaves a margin for the logits
    lowest = torch.finfo(like.dtype).min / 2
    hidden = like.new_zeros(padding.shape).masked_fill(padding.bool(), lowest)[:, None, None]
    return hidden if attn_mask is None else hidden + attn_mask


SIDES = ("encoder", "decoder")
# options of fairseq that replace its self-attention
FOREIGN = ["cross_self_attention", "quant_noise_pq",
           "encoder_xformers_att_config", "decoder_xformers_att_config"]  # fmt: skip


@dataclass
class RelativePositionOptions(FairseqDataclass):
    """Define the options that Transformers have besides fairseq's and the head's."""

    rel_pos_clip: Optional[int] = described(
        "relative positions in self-attention (Shaw et al. 2018), distances clipped to "
        "this number; 16 in the papers, with --no-token-positional-embeddings (default: off)"
    )
    rel_pos_in: ChoiceEnum(["both", *SIDES]) = described(
        "where --rel-pos-clip acts (default: both)", "both"
    )


def attach_relative_positions(model: BaseFairseqModel, cfg: Namespace) -> None:
    """Give the self-attentions that ``cfg`` names relative positions; other parameters stay."""
    sides = [side for side in SIDES if cfg.rel_pos_in in ("both", side)]
    if not cfg.rel_pos_clip:
        if len(sides) == 1:
            raise UserError(f"--rel-pos-in {sides[0]} needs --rel-pos-clip, for example 16")
        return
    for name in FOREIGN:
        if getattr(cfg, name, None):
            raise UserError(f"--rel-pos-clip does not work with {flag(name)}; leave one out")
    if sides == ["encoder"] and not hasattr(model, "encoder"):
        raise UserError("--rel-pos-in encoder: a language model has a decoder only")
    for side in sides:
        layers = getattr(getattr(model, side, None), "layers", nn.ModuleList())
        # not the list itself, which drops random layers with layerdrop
        for module in layers.children():
            if attention := getattr(module, "self_attn", None):  # BASE layers have none
                # fairseq's layers offer no way to be built with another class
                attention.__class__ = RelativeSelfAttention
                attention.relative = RelativeAttention(attention.head_dim, cfg.rel_pos_clip)
