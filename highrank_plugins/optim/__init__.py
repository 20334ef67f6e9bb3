"""Define an optimizer and a schedule for fairseq, and parameter groups for torch's optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.heads.checks import NOT_NEGATIVE, number

Group = dict[str, Any]


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Return the role of each parameter of a model, see `Head.parameter_roles`.

    Embeddings are "vocabulary", as is a matrix that a head shares with one; other matrices are
    "hidden".
    """
    found: dict[int, str] = {}
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            found[id(part.weight)] = "vocabulary"
        elif isinstance(part, Head):
            roles = part.parameter_roles()
            found |= {id(p): roles[name] for name, p in part.named_parameters()}
    others = "scalar", "vector", "hidden"
    return {n: found.get(id(p), others[min(p.dim(), 2)]) for n, p in model.named_parameters()}


def groups(
    model: nn.Module, rates: Mapping[str, float], weight_decay: float = 0.01
) -> tuple[list[Group], list[Group]]:
    """Return the parameter groups of `torch.optim.Muon` and of `torch.optim.AdamW`, in this order.

    Muon makes updates orthogonal, which fits "hidden" matrices alone. `rates` has the learning rate
    of each role. "vector" and "scalar" have no weight decay.
    """
    roles = parameter_roles(model)
    muon: dict[str, Group] = {}
    adam: dict[str, Group] = {}
    if unknown := sorted(rates.keys() - roles.values()):
        known = ", ".join(sorted({*roles.values()}))
        raise UserError(f"rates: no parameter has the role {unknown[0]!r}; this model has {known}")
    # torch's optimizers check their defaults alone: a rate below 0 would climb, in silence
    for role, rate in rates.items():
        number(f"rates: {role}", rate, NOT_NEGATIVE)
    number("weight_decay", weight_decay, NOT_NEGATIVE)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = roles[name]
            if role not in rates:
                raise UserError(f"rates: none for {role!r}, the role of {name}")
            decay = 0.0 if role in ("vector", "scalar") else weight_decay
            new: Group = {"params": [], "role": role, "lr": rates[role], "weight_decay": decay}
            takes = muon if role == "hidden" and parameter.dim() == 2 else adam
            takes.setdefault(role, new)["params"].append(parameter)
    return [*muon.values()], [*adam.values()]
