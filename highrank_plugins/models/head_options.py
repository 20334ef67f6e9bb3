"""Derive the ``--head…`` options of every fairseq model from the registries of heads.

An option left unset (``None``) takes the default of the head or the pointwise function, whose names
and defaults come from ``highrank_plugins.heads``. A layer that is registered later, as in a
``--user-dir``, adds its options to all models.
"""

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore

from highrank_plugins.common.names import flag
from highrank_plugins.common.option_field import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import (
    head_names,
    head_options,
    pointwise_names,
    pointwise_options,
)
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.heads.registry import PLAIN, Registry, unknown_name_message
from highrank_plugins.losses import IMPLEMENTATIONS

# what the presets of a trunk change, beside the defaults of the structures
OF_PRESETS = {
    "components": "mos and moc in awd_lstm_lm's presets 1b and text8 7",
    "dropout": "mixtures in awd_lstm_lm's presets ptb and wt2 0.29",
    "gss_k": "a softmax in awd_lstm_lm's preset wt2 3.0",
}


@dataclass
class HeadOptions(FairseqDataclass):
    """Define the ``--head…`` options that every head has; `add_options` adds each head's own."""

    head: Optional[str] = described(
        f"output layer: {', '.join(head_names())}, or your own; if it differs "
        "from the architecture's, the architecture's other head defaults are dropped"
    )
    head_pointwise: Optional[str] = described(
        f"function on each logit: {', '.join(pointwise_names())}, or one of your own"
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
    head_monitor: int = described(
        "measure the head every N updates and show it in log lines and "
        "--tensorboard-logdir (default: 0, never)",
        0,
    )


COMMON = [f.name for f in fields(HeadOptions) if f.name != "_name"]


def rate_options() -> dict[str, str]:
    """Return ``{"head_…_lr": pointwise function}`` of those with a learning rate of their own."""
    names = pointwise_names()
    return {f"head_{name}_lr": name for name in names if POINTWISE.find(name).own_rate}


def option_defaults(head: str, pointwise: str, language_model: bool = False) -> dict:
    """Return ``{"head_…": default}`` of one pair, in a language model or a translation model."""
    cls = HEADS.find(head)
    own = {name: value for name, value in head_options(head).items() if name not in cls.set_by}
    own |= cls.other_options
    if language_model:
        own |= cls.language_model_defaults
    return _plain(HEADS.title(head), own) | _function_defaults(pointwise)


def _function_defaults(pointwise: str) -> dict:
    options = pointwise_options(pointwise)
    return _plain(POINTWISE.title(pointwise), options, f"head_{pointwise}_")


def _plain(layer: str, options: dict, prefix: str = "head_") -> dict:
    """Return ``{"head_…": default}`` of a layer's options.

    A flag of fairseq can only switch on, so an option that is on by default takes true or false.
    """
    for name, default in options.items():
        if default is inspect.Parameter.empty:
            found = "no default"
        elif not isinstance(default, PLAIN):
            found = f"a default of type {type(default).__name__}"
        elif isinstance(default, float) and not math.isfinite(default):
            found = f"the default {default}"
        else:
            found = None
        if found:
            raise UserError(
                f"{layer}: the argument {name} of its constructor has {found}; give it a finite "
                "number, text, true or false, since it is an option"
            )
    return {
        f"{prefix}{name}": "true" if default is True else default
        for name, default in options.items()
    }


def derived_defaults() -> dict:
    """Return the options of all heads and pointwise functions that are registered now."""
    defaults: dict = {}
    owners = dict.fromkeys([*COMMON, *rate_options()], "all layers")
    for layer, own in _defaults_of_layers().items():
        for name, default in own.items():
            owner = owners.setdefault(name, layer)
            known = defaults.setdefault(name, default)
            is_shared = {owner, layer} <= set(head_names()) and type(known) is type(default)
            if owner != layer and not is_shared:
                raise UserError(
                    f"{flag(name)} is an option of {owner} and of {layer}, with another meaning or "
                    "type: rename the argument of one constructor"
                )
    return defaults


def _defaults_of_layers() -> dict[str, dict]:
    """Return the options of each structure, and of each pointwise function."""
    heads = {name: option_defaults(name, "identity") for name in head_names()}
    return heads | {name: _function_defaults(name) for name in pointwise_names()}


def layers_with(option: str) -> list[str]:
    """Return the structures and pointwise functions that have an option."""
    rates = rate_options()
    found = [layer for layer, own in _defaults_of_layers().items() if option in own]
    return [*found, *([rates[option]] if option in rates else [])]


def check_declarations() -> None:
    """Refuse a class whose constructor or texts do not fit the options that it declares."""
    for name in head_names():
        _check_arguments(name)
        cls = HEADS.find(name)
        _check_help(HEADS, name, {*head_options(name), *cls.other_options} - cls.set_by.keys())
    for name in pointwise_names():
        _check_help(POINTWISE, name, pointwise_options(name))


def _check_arguments(head: str) -> None:
    """Refuse a structure whose constructor lacks an argument that a model passes."""
    cls = HEADS.find(head)
    parameters = inspect.signature(cls).parameters
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if missing := sorted(set() if passes_on else HEADS.common - parameters.keys()):
        raise UserError(
            f"{HEADS.title(head)}: its constructor lacks {', '.join(missing)}, which every layer "
            "takes; add each argument, and pass it to super().__init__"
        )
    if missing := sorted(cls.set_by.keys() - parameters.keys()):
        raise UserError(
            f"{HEADS.title(head)}: its constructor lacks {', '.join(missing)}, which its `set_by` "
            "lists; add each argument and pass it on, or write a `set_by` without it"
        )


def _check_help(registry: Registry, name: str, options: Iterable[str]) -> None:
    """Refuse a text for an option that neither the class nor the texts of its bases have."""
    cls = registry.find(name)
    known = {*options, *getattr(super(cls, cls), "option_help", {})}
    for option in vars(cls).get("option_help", {}):
        if option not in known:
            message = unknown_name_message("option", option, known)
            raise UserError(f"{registry.title(name)}: `option_help`: {message}")


def add_options() -> None:
    """Give the configurations of all models the options of all layers that are registered now."""
    check_declarations()
    new = [_derived_field(*item) for item in sorted(derived_defaults().items())]
    new += [_rate_field(*item) for item in rate_options().items()]
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


def _derived_field(name: str, default: object) -> tuple:
    metadata = {"help": f"{_help_text(name)} (default: {_default_text(name)})"}
    return name, Optional[type(default)], field(default=None, metadata=metadata)


def _help_text(name: str) -> str:
    """Return what the first layer with a text for the option says, else whose option it is."""
    texts: dict[str, str] = {}
    for head in head_names():
        texts = {f"head_{n}": text for n, text in HEADS.find(head).option_help.items()} | texts
    for function in pointwise_names():
        own = POINTWISE.find(function).option_help.items()
        texts |= {f"head_{function}_{n}": text for n, text in own}
    return texts.get(name, f"of {', '.join(layers_with(name))}")


def _default_text(name: str) -> str:
    """Return the default of most structures, then those of the others, of languages and presets."""
    found: dict[str, list[str]] = {}
    for layer, own in _defaults_of_layers().items():
        if name in own:
            found.setdefault(str(own[name]), []).append(layer)
    (first, _), *others = sorted(found.items(), key=lambda item: -len(item[1]))
    parts = [first, *(f"{', '.join(layers)} {value}" for value, layers in others)]
    option = name.removeprefix("head_")
    in_text = {HEADS.find(h).language_model_defaults.get(option) for h in head_names()} - {None}
    parts += [f"language models {value}" for value in sorted(in_text)]
    return "; ".join([*parts, *filter(None, [OF_PRESETS.get(option)])])


def _rate_field(name: str, pointwise: str) -> tuple:
    trained = POINTWISE.find(pointwise).own_rate
    text = (
        f"learning rate of {pointwise}'s {trained.replace('_', ' ')} while the other parameters "
        "have the first --lr; a schedule changes both alike (default: theirs)"
    )
    return name, Optional[float], field(default=None, metadata={"help": text})


HEADS.listen(add_options)
POINTWISE.listen(add_options)
