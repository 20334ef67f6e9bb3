"""Define the ``--rel-pos-…`` options of the Transformers: relative positions in self-attention."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.modules import MultiheadAttention
from torch import nn

from highrank_plugins.common.flags import flag
from highrank_plugins.models.relative_self_attention import RelativeSelfAttention

SIDES = ("encoder", "decoder")
# options of fairseq that compute self-attention in a way of their own
FOREIGN = [
    "cross_self_attention",
    "quant_noise_pq",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
]


@dataclass
class RelativePositionOptions(FairseqDataclass):
    """Define the options that Transformers have besides fairseq's and the head's."""

    rel_pos_clip: Optional[int] = field(
        default=None,
        metadata={
            "help": "relative positions in self-attention (Shaw et al. 2018), distances clipped to "
            "this number; 16 in the papers, with --no-token-positional-embeddings (default: off)"
        },
    )
    rel_pos_in: ChoiceEnum(["both", *SIDES]) = field(
        default="both", metadata={"help": "where --rel-pos-clip acts (default: both)"}
    )


def attach_relative_positions(model: BaseFairseqModel, cfg: Namespace) -> None:
    """Give the self-attentions that ``cfg`` names relative positions.

    Args:
        model: a Transformer of fairseq's; its own parameters stay what they are.
    Raises:
        ValueError: ``--rel-pos-clip`` below 0, ``--rel-pos-in`` without it or without such a side
            of the model, an option of fairseq's that cannot work with it.
    """
    sides = [side for side in SIDES if cfg.rel_pos_in in ("both", side)]
    if not cfg.rel_pos_clip:
        if len(sides) == 1:
            raise ValueError(f"--rel-pos-in {sides[0]} needs --rel-pos-clip, for example 16")
        return
    if cfg.rel_pos_clip < 0:
        raise ValueError(f"--rel-pos-clip must be at least 0 (off), got {cfg.rel_pos_clip}")
    for name in FOREIGN:
        if getattr(cfg, name, None):
            raise ValueError(f"--rel-pos-clip does not work with {flag(name)}; leave one out")
    if sides == ["encoder"] and not hasattr(model, "encoder"):
        raise ValueError("--rel-pos-in encoder: a language model has a decoder only")
    for attention in _self_attentions(model, sides):
        RelativeSelfAttention.take_over(attention, cfg.rel_pos_clip)


def _self_attentions(model: BaseFairseqModel, sides: list[str]) -> Iterator[MultiheadAttention]:
    for side in sides:
        layers = getattr(getattr(model, side, None), "layers", nn.ModuleList())
        # not the list itself: with layerdrop it leaves layers out, at random
        for module in layers.children():
            # a BASE layer has none
            if hasattr(module, "self_attn"):
                yield module.self_attn
