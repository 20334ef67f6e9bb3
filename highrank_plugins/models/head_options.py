"""Describe heads by ``--head…`` options, which come from the registries of heads.

A head is a choice on each of `AXES`. `Choice` describes one by its options, checks and builds
it. An option left unset (``None``) takes the layer's default. A layer that is registered later, as
in a ``--user-dir``, adds its options to all models.
"""

import inspect
import math
import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore

from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import HEADS, POINTWISE, VOCABULARY, Head
from highrank_plugins.heads.registry import Registry
from highrank_plugins.heads.vocabulary import vocabulary_of
from highrank_plugins.losses import IMPLEMENTATIONS
from highrank_plugins.own_layers.kept_state import PLAIN


@dataclass
class HeadOptions(FairseqDataclass):
    """Define the ``--head…`` options that every head has; `add_options` adds each head's own."""

    head: Optional[str] = described(
        f"output layer: {', '.join(HEADS.names())}, or your own; if it differs "
        "from the architecture's, the architecture's other head defaults are dropped"
    )
    head_pointwise: Optional[str] = described(
        f"function on each logit: {', '.join(POINTWISE.names())}, or one of your own"
    )
    head_vocabulary: Optional[str] = described(
        f"what makes the vocabulary matrix of parameters: {', '.join(VOCABULARY.names())}, or one "
        "of your own"
    )
    head_embed_dim: Optional[int] = described(
        "width d of the vocabulary matrix (default: the embedding's if they are "
        "shared, and in awd_lstm_lm, else the decoder's output)"
    )
    head_bias: Optional[str] = described(
        "bias on the logits: true or false (default: false in Transformers, true in "
        "lstm and awd_lstm_lm)"
    )
    head_loss: ChoiceEnum(["auto", *IMPLEMENTATIONS]) = described(
        "how the criterion computes the loss (default: auto)", "auto"
    )
    head_loss_memory: Optional[int] = described(
        "memory for a chunk of the loss in MiB (default: chosen)"
    )
    head_loss_filter: bool = described(
        "leave out gradients that their dtype would round away (not exact)", False
    )
    head_z_loss: float = described(
        "weight of the squared log-sum-exp of each token's logits (mos: of each of its "
        "K softmaxes) in the training loss, which keeps logits small; PaLM: 1e-4 (default: 0)",
        0.0,
    )
    head_adam_lr: Optional[float] = described(
        "with --optimizer nt_asgd: train the head, and embeddings that share its matrix, by Adam "
        "at this rate while the others have SGD at the first --lr; a schedule changes both alike "
        "(default: SGD)"
    )
    head_monitor: int = described(
        "measure the head every N updates and show it in log lines and "
        "--tensorboard-logdir (default: 0, never)",
        0,
    )


COMMON = [f.name for f in fields(HeadOptions) if f.name != "_name"]


class Axis(NamedTuple):
    """Hold one choice that makes a head: its option, the classes, and the default.

    The options of a structure are ``head_<argument>``, of others ``head_<layer>_<argument>``.
    """

    option: str
    registry: Registry
    default: str
    of: Callable[[Head], Any]  # the layer of this axis in a head


AXES = (
    Axis("head", HEADS, "softmax", lambda head: head),
    Axis("head_pointwise", POINTWISE, "identity", attrgetter("pointwise")),
    Axis("head_vocabulary", VOCABULARY, "plain", vocabulary_of),
)


class Choice:
    """Describe a class on an axis by its options."""

    def __init__(self, axis: Axis, name: str) -> None:
        self.axis, self.name, self.cls = axis, name, axis.registry.find(name)
        self.prefix = "head_" if axis.registry is HEADS else f"head_{name}_"
        own = axis.registry.options(name)
        self.no_options = getattr(self.cls, "no_options", ())
        self.arguments = {name: own[name] for name in own if name not in self.no_options}
        self.of_language_models = getattr(self.cls, "language_model_defaults", {})
        self.trained = getattr(self.cls, "own_rate", None)
        self.rate = f"{self.prefix}lr" if self.trained else None

    def defaults(self, language_model: bool = False) -> dict[str, Any]:
        """Return ``{"head_…": default}``; text if true, since a flag can only switch on."""
        own = self.arguments | (self.of_language_models if language_model else {})
        for name, default in own.items():
            is_infinite = isinstance(default, float) and not math.isfinite(default)
            if is_infinite or not isinstance(default, PLAIN):
                raise UserError(
                    f"{self.axis.registry.title(self.name)}: the argument {name} of its constructor"
                    " needs a default, a finite number, text, true or false, since it is an option"
                )
        named = {self.prefix + n: "true" if value is True else value for n, value in own.items()}
        return named | ({self.rate: None} if self.rate else {})

    def check(self) -> None:
        """Refuse a class whose constructor does not fit the options that it declares."""
        registry, title = self.axis.registry, self.axis.registry.title(self.name)
        parameters = inspect.signature(self.cls).parameters
        passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        taken = {*self.no_options, *(() if passes_on else registry.common)}
        if missing := sorted(taken - parameters.keys()):
            raise UserError(
                f"{title}: its constructor lacks {', '.join(missing)}, which layers of its kind "
                "take; add each argument, and pass it to super().__init__"
            )

    def build(self, cfg: Namespace, **common: Any) -> Any:
        """Build the layer; an error names the user's option in place of the argument."""
        own = {}
        for name, default in self.arguments.items():
            option = self.prefix + name
            if hasattr(cfg, option):
                value = getattr(cfg, option)
                own[name] = true_or_false(option, value) if isinstance(default, bool) else value
        with self.names_options():
            return self.axis.registry.build(self.name, **common, **own)

    @contextmanager
    def names_options(self) -> Iterator[None]:
        """Raise UserError for a ValueError of the layer, with options in place of arguments."""
        try:
            yield
        except ValueError as error:
            message = str(error).removeprefix(f"{self.name}: ")
            named = [*self.arguments, *(self.axis.registry.common & {"embed_dim"})]
            if names := "|".join(map(re.escape, named)):
                message = re.sub(
                    rf"\b({names})\b", lambda m: flag(self.prefix + m[0]), message, count=1
                )
            raise UserError(f"{flag(self.axis.option)} {self.name}: {message}") from None


def true_or_false(option: str, value: object) -> bool:
    """Return the value of an option that is on by default."""
    if str(value).lower() not in ("true", "false"):
        raise UserError(f"{flag(option)}: {value!r} must be true or false")
    return str(value).lower() == "true"


def layers() -> Iterator[Choice]:
    """Yield the layers that are registered now, structures first."""
    for axis in AXES:
        yield from (Choice(axis, name) for name in axis.registry.names())


def options_of_layers() -> dict[str, dict[str, Any]]:
    """Return the defaults of each option by layer; refuse an option with two meanings."""
    found: dict[str, dict[str, Any]] = {}
    structures = set(HEADS.names())
    for layer in layers():
        for name, default in layer.defaults().items():
            known = found.setdefault(name, {})
            is_shared = {*known, layer.name} <= structures and {*map(type, known.values())} <= {
                type(default)
            }
            if name in COMMON or (known and not is_shared):
                raise UserError(
                    f"{flag(name)} is an option of {next(iter(known), 'all layers')} and of "
                    f"{layer.name}, with another meaning or type: rename the argument of one "
                    "constructor"
                )
            known[layer.name] = default
    return found


def add_options() -> None:
    """Give the configurations of all models the options of all layers that are registered now."""
    for layer in layers():
        layer.check()
    new = []
    for name, defaults in sorted(options_of_layers().items()):
        default = next(iter(defaults.values()))
        kind = float if default is None else type(default)  # None: of a learning rate
        new.append((name, Optional[kind], described(help_of(name))))
    made = make_dataclass("HeadOptionsOfLayers", new)
    for config in _with_subclasses(HeadOptions):
        config.__annotations__ |= {name: kind for name, kind, _ in new}
        config.__dataclass_fields__ |= made.__dataclass_fields__
        for name, _, _ in new:
            setattr(config, name, None)
    for name, config in MODEL_DATACLASS_REGISTRY.items():  # as fairseq's register_model
        if config is not None and issubclass(config, HeadOptions):
            node = config()
            node._name = name
            ConfigStore.instance().store(name, node, group="model", provider="fairseq")


def _with_subclasses(config: type) -> Iterator[type]:
    yield config
    for subclass in config.__subclasses__():
        yield from _with_subclasses(subclass)


def help_of(name: str) -> str:
    """Return the text of the first layer that describes an option, and the defaults.

    They are the default of most layers, then those of the others and of language models.
    """
    found: dict[str, list[str]] = {}
    text, in_texts = None, set()
    for layer in layers():
        if name == layer.rate:
            return (
                f"learning rate of {layer.name}'s {layer.trained.replace('_', ' ')} while the "
                "other parameters have the first --lr; a schedule changes both alike (default: "
                "theirs)"
            )
        argument = name.removeprefix(layer.prefix)
        if name in (own := layer.defaults()):
            text = text or _documented(layer.cls, argument)
            found.setdefault(str(own[name]), []).append(layer.name)
        in_texts.add(layer.of_language_models.get(argument))
    (first, _), *others = sorted(found.items(), key=lambda item: -len(item[1]))
    parts = [first, *(f"{', '.join(names)} {value}" for value, names in others)]
    parts += [f"language models {value}" for value in sorted(in_texts - {None})]
    text = text or f"of {', '.join(options_of_layers()[name])}"
    return f"{text} (default: {'; '.join(parts)})"


def _documented(cls: type, argument: str) -> str | None:
    """Return what `Args:` in the docstring of a class, or of a base, say of an argument."""
    for base in cls.__mro__:
        section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")[2]
        if found := re.search(rf"^    {argument}: (.+(\n {{5,}}.+)*)", section, re.MULTILINE):
            return " ".join(found[1].split()).removesuffix(".").replace("%", "%%")  # argparse's %
    return None


for each in AXES:
    each.registry.listen(add_options)
