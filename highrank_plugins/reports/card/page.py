"""Describe a checkpoint for its card, and render the card as one page that needs nothing else."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor, nn

from highrank_plugins.common.formatting import percent
from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import Head, head_options, pointwise_options, vocabulary_options
from highrank_plugins.heads.vocabulary import UNCHANGED, vocabulary_of
from highrank_plugins.reports import plots

if TYPE_CHECKING:
    from highrank_plugins.inference.loading import LoadedModel
    from highrank_plugins.reports.card.gather import Card


@dataclass(frozen=True)
class Absent:
    """Replace a value that is missing, and say why."""

    reason: str


_TRAINING = {
    "task": ("_name", "source_lang", "target_lang", "tokens_per_sample", "bptt"),
    "criterion": ("_name", "label_smoothing", "ar_alpha", "tar_beta"),
    "optimizer": ("_name", "adam_betas", "weight_decay"),
    "lr_scheduler": ("_name", "warmup_updates"),
    "optimization": ("lr", "clip_norm", "update_freq", "max_epoch", "max_update"),
    "dataset": ("max_tokens", "batch_size"),
    "common": ("seed", "fp16", "bf16"),
}


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """Return options of head and training, and all of the model that fairseq stored."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(
        loaded.config, resolve=True, enum_to_str=True, throw_on_missing=False
    )
    stored = cast("dict[str, Any]", plain)  # OmegaConf's own type allows lists and text, too
    # fairseq's models and optimizers without a dataclass have a Namespace
    blocks = {name: vars(b) if isinstance(b, Namespace) else b for name, b in stored.items()}
    return {
        "head": describe_head(loaded.head),
        "training": _training(loaded, blocks),
        "model": {name: of for name, of in sorted(blocks["model"].items()) if _is_said(of)},
    }


def describe_head(head: Head) -> dict[str, Any]:
    """Return structure, pointwise function, sizes, and the options of both."""
    structure, function = layer_name(head), layer_name(head.pointwise)
    matrix = vocabulary_of(head)
    named: dict[str, Any] = {
        "structure": structure,
        "pointwise": function,
        "vocabulary": None if matrix is UNCHANGED else layer_name(matrix),
        "classes M": head.num_classes,
        "features F": head.feature_dim,
        "embedding d": head.embed_dim,
        "bias": head.bias is not None,
    }
    named |= {name: getattr(head, name, None) for name in head_options(structure)}
    for name in pointwise_options(function):
        value = getattr(head.pointwise, name, None)
        named[f"{function} {name}"] = value.item() if isinstance(value, Tensor) else value
    for name in vocabulary_options(layer_name(matrix)):
        named[f"{layer_name(matrix)} {name}"] = getattr(matrix, name, None)
    return {name: value for name, value in named.items() if _is_said(value)}


def _training(loaded: LoadedModel, blocks: dict[str, Any]) -> dict[str, Any]:
    extra = loaded.extra.get("extra_state") or {}
    metric = (blocks.get("checkpoint") or {}).get("best_checkpoint_metric") or "loss"
    smoothed = (blocks.get("criterion") or {}).get("label_smoothing")
    unit = ", smoothed, bits per token" if smoothed else ", bits per token"
    found = {
        "updates": loaded.updates,
        "epoch": (extra.get("train_iterator") or {}).get("epoch"),
        f"best validation {metric}{unit if metric == 'loss' else ''}": extra.get("best"),
    }
    for block, names in _TRAINING.items():
        options = blocks.get(block) or {}
        for name in names:
            found[block if name == "_name" else name] = options.get(name)
    return {name: value for name, value in found.items() if _is_said(value)}


def _is_said(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list) and value not in ("", [])


def parameter_parts(model: nn.Module, head: Head) -> list[dict[str, Any]]:
    """Return each tensor of the head, and the rest by encoder and decoder, embeddings and layers.

    A tied tensor counts once: the vocabulary matrix as the head's, even if it is an embedding.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    # a stock model's head only shares the memory
    of_head = {p.data_ptr(): name for name, p in head.named_parameters() if p.numel()}
    grouped: dict[tuple[str, bool], list[tuple[list[str], Any]]] = {}
    for parameter in model.parameters():
        known = names[id(parameter)]
        side = known[0].split(".")[0] if "." in known[0] else "model"
        part = f"{side}: {'embeddings' if 'embed' in known[0] else 'layers'}"
        if (in_head := of_head.get(parameter.data_ptr())) is not None:
            part = "vocabulary matrix W" if in_head == "weight" else f"head: {in_head}"
        grouped.setdefault((part, parameter.requires_grad), []).append((known, parameter))
    return [
        {
            "name": part,
            "tensors": [f"{len(tensors)} tensors"]
            if len(tensors) > 3
            else [f"{' = '.join(of)} [{' × '.join(map(str, p.shape))}]" for of, p in tensors],
            "parameters": sum(parameter.numel() for _, parameter in tensors),
            "trained": trained,
        }
        for (part, trained), tensors in grouped.items()
    ]


def render(card: Card) -> str:
    """Return the page: HTML with its style and its figures inside, and no script."""
    environment = Environment(
        loader=PackageLoader("highrank_plugins.reports.card", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    in_pieces = "▁" in str(card.samples)
    words = {"text": _text, "piece": lambda word: _piece(word, in_pieces)}
    environment.filters |= {"share": percent, "drawn": plots.data_uri, **words}
    environment.tests["absent"] = lambda thing: isinstance(thing, Absent)
    return environment.get_template("card.html").render(
        **vars(card),
        in_pieces=in_pieces or "@@" in str(card.samples),
        missing=card.missing,
        shown={name: section for name, section in card.sections.items() if section.rows},
        total=sum(part["parameters"] for part in card.parameters),
        with_figures=plots.is_available(),
    )


def _text(pieces: str) -> str:
    """Return the text that pieces of SentencePiece or subword-nmt split."""
    if "▁" in pieces:
        pieces = pieces.replace("</s>", "▁</s>▁").replace(" ", "").replace("▁", " ")
    return " ".join(pieces.replace("@@ ", "").split())


def _piece(piece: str, begins_with_mark: bool) -> str:
    """Return a piece as people read it, with … where its word goes on."""
    if not begins_with_mark or re.fullmatch("<.+>", piece):
        return re.sub("@@$", "…", piece)
    return piece[1:] or "␣" if piece[0] == "▁" else f"…{piece}"
