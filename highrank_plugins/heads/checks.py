"""Check constructor arguments; messages name the option. Check what a state dictionary holds."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from highrank_plugins.common.options import Range
from highrank_plugins.common.user_error import UserError

ROLES = {
    **dict.fromkeys(("weight", "gate_embed", "gate_bias"), "vocabulary"),
    **dict.fromkeys(("prior.weight", "gate_shared.weight"), "components"),
    **dict.fromkeys(("latent.weight", "gate_hidden.weight"), "hidden"),
}
FACTOR = "weight.original"  # begins torch's names of the factors of a parametrised matrix
ANY, POSITIVE, NOT_NEGATIVE = Range(-math.inf), Range(0, above_low=True), Range(0)
RATE = Range(0, 1, below_high=True)
PLAIN_SOFTMAX = {"name": "softmax", "pointwise.name": "identity"}  # a `function`


# -- for `Head`: roles of parameters, and the function of a layer in its state dictionary.
# Parameters of one name and shape may belong to two functions: a cap of 15 and one of 30. An extra
# state of bytes, JSON, holds what `function` returns. A plain softmax has none, and to load its
# state into another layer torch asks for strict=False.


def parameter_roles(head: Any) -> dict[str, str]:
    """Return the role of each parameter by name, from which optimisers can choose.

    "vocabulary" has a row for each class or many of them, "components" one for each component;
    "hidden" matrices map features to others. The rest are "vector" and "scalar".
    """
    return {name: _role(head, name, p) for name, p in head.named_parameters()}


def _role(head: Any, name: str, parameter: Tensor) -> str:
    if parameter.dim() < 2:
        return "scalar" if parameter.numel() == 1 else "vector"
    name, rows = name.removeprefix("parametrizations."), len(parameter)
    if name.startswith("weight."):  # a factor of a parametrised vocabulary matrix
        maps = getattr(head.parametrizations["weight"][0], "maps", None)
        factor = name.removeprefix(FACTOR)
        if maps is not None and (factor or "0").isdigit():
            return "hidden" if int(factor or 0) in maps else "vocabulary"
        return "vocabulary" if rows >= parameter.size(1) else "hidden"
    return ROLES.get(name, "vocabulary" if rows == head.num_classes else "hidden")


def function_as_bytes(head: Any) -> Tensor:
    """Return the function as bytes."""
    return torch.tensor([*json.dumps(head.function(), default=repr).encode()]).byte()


def check_function(head: Any, state: Tensor) -> None:
    """Raise UserError if a state dictionary belongs to another function."""
    there = json.loads(bytes(state.tolist()))
    for name, value in head.function().items():
        if (before := there.get(name, value)) != value:
            raise UserError(
                f"the state dictionary is of another function: {name} {before} there, {value} "
                "in this head; build the head with the options of its training"
            )


def omits_function(head: Any) -> bool:
    """Return whether the state dictionary holds no function; that of a plain softmax has none."""
    if type(head).get_extra_state is not function_as_bytes:
        return False  # a subclass keeps something else
    return not head.states_function or head.function() == PLAIN_SOFTMAX


def forgive_function(
    head: Any, prefix: str, metadata: object, strict: bool, missing: list[str], *others: object
) -> None:
    """Remove the function from the names that are missing, where a state dictionary has none."""
    if omits_function(head) and (name := f"{prefix}_extra_state") in missing:
        missing.remove(name)


# -- constructor arguments -----------------------------------------------------------------------


def integer(name: str, value: int, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool):
        raise ValueError(f"{name}: expected an integer, got {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False: text such as "false" would count as true."""
    if isinstance(value, str) or value not in (True, False):
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def class_order(
    num_classes: int, frequent: int, classes: Any = None, counts: Any = None
) -> list[int] | None:
    """Return all class ids, chosen frequent ones first; None where these are the first ids."""
    if counts is not None:
        if classes is not None:
            raise ValueError("class_counts and frequent_classes: give one of the two")
        counts = torch.as_tensor(counts, device="cpu")
        if counts.shape != (num_classes,) or counts.isnan().any():
            raise ValueError(f"class_counts: expected {num_classes} numbers, and no NaN")
        classes = counts.argsort(descending=True, stable=True)[:frequent]
    chosen = () if classes is None else torch.as_tensor(classes, device="cpu").tolist()
    ids = {integer("frequent_classes", c, least=0): None for c in chosen}
    if len(ids) != len(chosen) or max(ids, default=0) >= num_classes:
        raise ValueError(f"frequent_classes: expected different ids below {num_classes}")
    if classes is not None and len(ids) != frequent:
        raise ValueError(f"frequent is {frequent}, but frequent_classes has {len(ids)} ids")
    order = [*ids, *(c for c in range(num_classes) if c not in ids)]
    return None if order == [*range(num_classes)] else order


def number_of_frequent(ratio: float, multiple: int, num_classes: int) -> int:
    """Return S: int(ratio · M), rounded to the nearest multiple where that keeps its meaning.

    A GPU loads 16 bytes at once only where rows start at multiples of 16 bytes. A number below
    `multiple` stays, since rounding would change the share of classes too much; so does one that
    would exceed M, and M itself.
    """
    exact = int(number("frequent_ratio", ratio, Range(0, 1)) * num_classes)
    multiple = integer("frequent_multiple", multiple)
    rounded = (exact + multiple // 2) // multiple * multiple
    keeps = exact < multiple or exact == num_classes or rounded > num_classes
    return exact if keeps else rounded


def number(name: str, value: float, bounds: Range = ANY) -> float:
    """Return `value` as a finite number within the bounds."""
    is_real = not isinstance(value, str | bool | None) and math.isfinite(value)
    if problem := bounds.problem(value) if is_real else f"must be a finite number, got {value!r}":
        raise ValueError(f"{name} {problem}")
    return float(value)


def vocabulary_matrix(weight: object, shape: tuple[int, int]) -> nn.Parameter:
    """Return a vocabulary matrix to share, after checks, or a new one."""
    if weight is None:
        return nn.Parameter(torch.empty(shape))
    if not isinstance(weight, nn.Parameter) or tuple(weight.shape) != shape:
        shown = f"{type(weight).__name__} {tuple(getattr(weight, 'shape', ())) or ''}".rstrip()
        raise ValueError(
            f"weight: expected a torch.nn.Parameter to share, of shape {shape} (num_classes, "
            f"embed_dim), got {shown}"
        )
    return weight


def fill_matrix(head: nn.Module, fill: Callable[[Tensor], object]) -> None:
    """Let `fill` write a head's vocabulary matrix in place, also through a parametrisation."""
    if isinstance(weight := head.weight, nn.Parameter):
        fill(weight)
    elif isinstance(weight, Tensor):
        with torch.no_grad():
            fill(matrix := torch.empty_like(weight))
            head.weight = matrix  # the parametrisation's right_inverse
