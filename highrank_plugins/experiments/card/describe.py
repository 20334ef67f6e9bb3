"""The configuration of a checkpoint, for a card."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, cast

from torch import Tensor

from highrank_plugins.experiments.card.contents import Absent, Configuration
from highrank_plugins.experiments.card.subject import Subject
from highrank_plugins.heads import Head, head_options, pointwise_options
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise.base import POINTWISE

# of the hundreds of options that fairseq stores, those that say what the trunk and training are
_TRUNK = """encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads
    encoder_hidden_size encoder_normalize_before decoder_layers decoder_embed_dim
    decoder_input_dim decoder_output_dim decoder_ffn_embed_dim decoder_attention_heads
    decoder_hidden_size decoder_last_hidden_size decoder_out_embed_dim decoder_normalize_before
    share_all_embeddings share_decoder_input_output_embed activation_fn dropout dropouti dropouth
    dropoute wdrop attention_dropout activation_dropout""".split()
_TRAINING = {
    "task": ("_name", "source_lang", "target_lang", "tokens_per_sample", "bptt"),
    "criterion": ("_name", "label_smoothing", "ar_alpha", "tar_beta"),
    "optimizer": ("_name", "adam_betas", "weight_decay"),
    "lr_scheduler": ("_name", "warmup_updates"),
    "optimization": ("lr", "clip_norm", "update_freq", "max_epoch", "max_update"),
    "dataset": ("max_tokens", "batch_size"),
    "common": ("seed", "fp16", "bf16"),
}


def describe(subject: Subject) -> Configuration:
    """What kind of model this is and how it was trained."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(
        subject.config, resolve=True, enum_to_str=True, throw_on_missing=False
    )
    blocks = cast("dict[str, Any]", plain)  # OmegaConf's own type allows lists and text, too
    stored = blocks["model"]  # of stock models that have no dataclass a Namespace
    stored = vars(stored) if isinstance(stored, Namespace) else stored
    model = {name: value for name, value in sorted(stored.items()) if _is_said(value)}
    head = subject.head if isinstance(subject.head, Absent) else describe_head(subject.head)
    trunk = {name: model[name] for name in _TRUNK if name in model}
    return Configuration(head, trunk, _training(subject, blocks), model)


def describe_head(head: Head) -> dict[str, Any]:
    """Structure, pointwise function, sizes, and the options of both."""
    structure, function = HEADS.name_of(head), POINTWISE.name_of(head.pointwise)
    named = {
        "structure": structure,
        "pointwise": function,
        "classes M": head.num_classes,
        "features F": head.feature_dim,
        "embedding d": head.embed_dim,
        "bias": head.bias is not None,
    }
    named |= {name: getattr(head, name, None) for name in head_options(structure)}
    for name in pointwise_options(function):
        value = getattr(head.pointwise, name, None)
        named[f"{function} {name}"] = value.item() if isinstance(value, Tensor) else value
    return {name: value for name, value in named.items() if _is_said(value)}


def _training(subject: Subject, blocks: dict[str, Any]) -> dict[str, Any]:
    history = subject.extra.get("optimizer_history") or [{}]
    extra = subject.extra.get("extra_state") or {}
    reached = {
        "updates": history[-1].get("num_updates"),
        "epoch": (extra.get("train_iterator") or {}).get("epoch"),
        "best validation loss": extra.get("best"),
    }
    for block, names in _TRAINING.items():
        options = blocks.get(block) or {}
        for name in names:
            reached[block if name == "_name" else name] = options.get(name)
    return {name: value for name, value in reached.items() if _is_said(value)}


def _is_said(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list) and value not in ("", [])
