"""How many parameters each part of a model has, for a card."""

from __future__ import annotations

from typing import Any

from torch import nn

from highrank_plugins.experiments.card.contents import Absent, Maybe, Part
from highrank_plugins.heads import Head


def parameter_parts(model: nn.Module, head: Maybe[Head]) -> list[Part]:
    """Parts of the model in the order of their first parameter, tied tensors counted once.

    The vocabulary matrix is a part of its own, also where it is an embedding, too; so is each
    other tensor of the head. The rest goes by encoder and decoder, embeddings and layers.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    of_head: dict[int, str] = {}
    if not isinstance(head, Absent):  # that of a stock model only shares the memory
        of_head = {p.data_ptr(): name for name, p in head.named_parameters() if p.numel()}
    grouped: dict[tuple[str, bool], list[tuple[list[str], Any]]] = {}
    for parameter in model.parameters():
        known = names[id(parameter)]
        part = _part(known[0], of_head.get(parameter.data_ptr()))
        grouped.setdefault((part, parameter.requires_grad), []).append((known, parameter))
    return [_described(part, trained, tensors) for (part, trained), tensors in grouped.items()]


def _part(name: str, in_head: str | None) -> str:
    if in_head is not None:
        return "vocabulary matrix W" if in_head == "weight" else f"head: {in_head}"
    side = name.split(".")[0] if "." in name else "model"
    return f"{side}: {'embeddings' if 'embed' in name else 'layers'}"


def _described(part: str, trained: bool, tensors: list[tuple[list[str], Any]]) -> Part:
    whole = sum(parameter.numel() for _, parameter in tensors)
    if len(tensors) > 3:
        return Part(part, [f"{len(tensors)} tensors"], whole, trained)
    shown = [
        f"{' = '.join(names)} [{' × '.join(map(str, parameter.shape))}]"
        for names, parameter in tensors
    ]
    return Part(part, shown, whole, trained)
