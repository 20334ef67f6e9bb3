"""Define what is measured: a loss of some size, or a model of some size; torch loads when used."""

from argparse import Namespace
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter

import highrank_plugins
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.training.model_size import matrix_products

if TYPE_CHECKING:
    from highrank_plugins.heads import Head

PRESETS = Path(__file__).with_name("presets.yaml")
# options of structures that a case sets
STRUCTURE_OPTIONS = ("components", "frequent", "gate_dim", "gates")
LANGUAGE_MODEL = "bptt_language_modeling"  # the name of a task


class TimingSettings(BlockOptions):
    """Say on what steps are timed."""

    model_config = ConfigDict(strict=False)

    dtype: Literal["float64", "float32", "bfloat16", "float16"] = option(
        "float32", "Precision of weights and products."
    )
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    repeats: int = option(
        7, "Number of timed repetitions, which alternate with the baseline's.", ge=1
    )
    threads: int = option(0, "Number of CPU threads of torch; 0: its default.", ge=0)

    def changes(self, **given: Path | str | None) -> dict[str, str]:
        """Return values that replace those of a preset, as text."""
        chosen = {"dtype": self.dtype, "device": self.device, **given}
        return {name: str(value) for name, value in chosen.items() if value is not None}


class BenchSettings(TimingSettings):
    """Say how losses and models are timed: `highrank bench loss` and `train`."""

    within: int | None = option(
        None,
        "Time each with the largest batch that fits into N MiB (of a model, besides weights and "
        "the optimizer's state), and compare by token.",
        ge=1,
    )
    csv: Path | None = option(None, "Also write a CSV file.")


class CaseError(ValueError):
    """Report a preset or option that does not exist, or a value out of range."""


@dataclass(frozen=True)
class LossCase:
    """Describe one call of `head.nll` with its backward pass.

    Sizes are the papers': N tokens, K components, d1 = dim, d = embed_dim (0: d = d1), M classes,
    S frequent, d2 gate_dim; Mixtape's `gates` are a tree or a softmax. `memory` is the size of a
    chunk in MiB, `--head-loss-memory`; 0: the device's default. `user_dir` is the package of a
    layer of your own.
    """

    head: str
    tokens: int
    dim: int
    classes: int
    embed_dim: int = 0
    components: int = 1
    frequent: int = 0
    gate_dim: int = 64
    gates: str = "tree"
    pointwise: str = "identity"
    label_smoothing: float = 0.0
    bias: bool = True
    memory: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    user_dir: str | None = None
    entropy: bool = False
    z_loss: float = 0.0

    def work(self) -> int:
        """Return the number of tokens."""
        return self.tokens

    def build_head(self) -> "Head":
        """Build the layer on torch's default device, with the options of structures it knows."""
        from highrank_plugins.heads import build_head, head_options

        sizes: dict[str, Any] = {"feature_dim": self.dim, "embed_dim": self.embed_dim or self.dim}
        try:
            known = head_options(self.head)
            sizes |= {n: getattr(self, n) for n in STRUCTURE_OPTIONS if n in known}
            more: dict[str, Any] = {"bias": self.bias, "pointwise": self.pointwise}
            return build_head(self.head, num_classes=self.classes, **sizes, **more)
        except ValueError as error:
            raise CaseError(str(error)) from error

    def layer(self) -> "Head":
        """Build the layer on device meta, to inspect it."""
        import torch

        with torch.device("meta"):
            return self.build_head()

    def products(self) -> list[tuple[int, int, int]]:
        """Return (rows, inner, columns) of the matrix products of a forward pass."""
        return matrix_products(self.layer(), self.tokens, self.dim)


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
    """Return the cases of a kind in presets.yaml, by name."""
    listed, adapter = yaml.safe_load(PRESETS.read_text(encoding="utf-8")), TypeAdapter(KINDS[kind])
    return {name: adapter.validate_python(values) for name, values in listed[kind].items()}


def named(kind: str, name: str) -> dict[str, Case]:
    """Return the preset called `name`, or all of the group `name` (those called `name/…`)."""
    known = presets(kind)
    names = dict.fromkeys([n.partition("/")[0] for n in known] + [*known])
    refuse_unknown("preset", [name], names)
    return {n: case for n, case in known.items() if n == name or n.startswith(f"{name}/")}


def changed(case: Case, changes: dict[str, Any]) -> Case:
    """Return `case` with some of its values replaced and checked."""
    new = replace(case, **changes)
    for name, value in vars(new).items():
        least = 0 if name in ("frequent", "memory", "embed_dim") else 1
        if type(value) is int and value < least:
            raise CaseError(f"--{name} must be at least {least}, got {value}")
    if isinstance(new, LossCase) and new.user_dir is None:
        new.layer()  # refuses unknown names and sizes that no layer has
    return new


def refuse_unknown(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known, and suggest one."""
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise CaseError(f"{what} {name} does not exist{near}; known: {', '.join(known)}")


def import_user_dir(package: str) -> None:
    """Import a package with layers, as fairseq does; they get their archs."""
    from fairseq.utils import import_user_module

    highrank_plugins.register()
    import_user_module(Namespace(user_dir=package))
