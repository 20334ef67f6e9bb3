"""Define what is measured: a loss of some size, or a model of some size."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import TypeAdapter

import highrank_plugins
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.heads import Head, build_head, head_options

REDUCTIONS = ("sum", "none")
PRESETS = Path(__file__).with_name("presets.yaml")
# options of structures whose sizes a case sets
STRUCTURE_SIZES = ("components", "frequent", "gate_dim")
LANGUAGE_MODEL = "bptt_language_modeling"  # the name of a task
DTYPES = ("float64", "float32", "bfloat16", "float16")


class CaseError(ValueError):
    """Report a preset or option that does not exist, or a value out of range."""


@dataclass(frozen=True)
class LossCase:
    """Describe one call of `head.nll` with its backward pass.

    Sizes are the papers': N tokens, K components, d1 = dim, d = embed_dim (0: d = d1), M classes,
    S frequent, d2 gate_dim. `memory` is the size of a chunk in MiB, `--head-loss-memory`; 0: the
    device's default. `user_dir` is the package of a layer of your own.
    """

    head: str
    tokens: int
    dim: int
    classes: int
    embed_dim: int = 0
    components: int = 1
    frequent: int = 0
    gate_dim: int = 64
    pointwise: str = "identity"
    label_smoothing: float = 0.0
    bias: bool = True
    reduction: str = "sum"
    memory: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    user_dir: str | None = None
    entropy: bool = False
    z_loss: float = 0.0

    def work(self) -> int:
        """Return the number of tokens."""
        return self.tokens

    def build_head(self) -> Head:
        """Build the layer on torch's default device, with those of K, S and d2 that it knows."""
        try:
            known = head_options(self.head)
            own = {n: getattr(self, n) for n in STRUCTURE_SIZES if n in known}
            return build_head(
                self.head,
                num_classes=self.classes,
                feature_dim=self.dim,
                embed_dim=self.embed_dim or self.dim,
                bias=self.bias,
                pointwise=self.pointwise,
                **own,
            )
        except ValueError as error:
            raise CaseError(str(error)) from error

    def layer(self) -> Head:
        """Build the layer on device meta, to inspect it."""
        with torch.device("meta"):
            return self.build_head()


@dataclass(frozen=True)
class ModelCase:
    """Describe training steps or translation of a model of some size, on random words.

    A language model trains on `sentences` streams, in chunks of `length` tokens, as the recipes'.
    `user_dir` is the package of a layer of your own.
    """

    classes: int
    sentences: int
    length: int
    shape: str = ""
    models: tuple[str, ...] = ()
    baseline: str = "transformer"
    task: str = "translation"
    dtype: str = "float32"
    device: str = "cpu"
    user_dir: str | None = None

    def work(self) -> int:
        """Return the number of tokens of the target side."""
        return self.sentences * self.length

    @property
    def is_language_model(self) -> bool:
        """Whether it is trained on streams of text."""
        return self.task == LANGUAGE_MODEL


Case = LossCase | ModelCase
KINDS: dict[str, type[LossCase] | type[ModelCase]] = {
    "loss": LossCase,
    "train": ModelCase,
    "generate": ModelCase,
}


def presets(kind: str) -> dict[str, Case]:
    """Return the cases of presets.yaml for `highrank bench kind`, by name."""
    listed = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))[kind]
    return {name: case_from(kind, values) for name, values in listed.items()}


def case_from(kind: str, values: dict[str, Any]) -> Case:
    """Return a case of `highrank bench kind` from plain values, as in YAML and JSON."""
    return TypeAdapter(KINDS[kind]).validate_python(values)


def named(kind: str, name: str) -> dict[str, Case]:
    """Return the preset called `name`, or all of the group `name` (those called `name/…`)."""
    known = presets(kind)
    group = {n: case for n, case in known.items() if n == name or n.startswith(f"{name}/")}
    if not group:
        names = dict.fromkeys([n.partition("/")[0] for n in known] + [*known])
        raise CaseError(
            f"preset {name} does not exist{did_you_mean(name, names)}; known: {', '.join(names)}"
        )
    return group


def changed(case: Case, changes: dict[str, Any]) -> Case:
    """Return `case` with some of its values replaced."""
    new = type(case)(**(asdict(case) | changes))
    if new.dtype not in DTYPES:
        raise CaseError(
            f"--dtype {new.dtype} does not exist{did_you_mean(new.dtype, DTYPES)}; "
            f"known: {', '.join(DTYPES)}"
        )
    if isinstance(new, LossCase) and new.reduction not in REDUCTIONS:
        raise CaseError(f"--reduction {new.reduction} does not exist; known: sum, none")
    for field in fields(new):
        value = getattr(new, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            least = 0 if field.name in ("frequent", "memory", "embed_dim") else 1
            if value < least:
                raise CaseError(f"--{field.name} must be at least {least}, got {value}")
    return new


def import_user_dir(package: str) -> None:
    """Import a package with layers, as fairseq does; they get their archs."""
    from fairseq.utils import import_user_module

    highrank_plugins.register()
    import_user_module(Namespace(user_dir=package))
