"""Register architectures: every token of a head on every stock preset of a trunk.

``transformer_mos_iwslt_de_en`` is fairseq's ``transformer_iwslt_de_en`` with the head ``mos``.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import MISSING, field, fields, make_dataclass
from functools import partial
from typing import Any, Optional

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    register_model_architecture,
)
from fairseq.models.transformer import transformer_config
from omegaconf import DictConfig, OmegaConf, open_dict

from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import tokens
from highrank_plugins.models.head_from_options import choose_head
from highrank_plugins.models.head_options import AXES, HeadOptions
from highrank_plugins.models.relative_positions import RelativePositionOptions

# adaptive softmax and input split the vocabulary matrix that a head needs whole
ADAPTIVE_OFF = {
    "adaptive_softmax_cutoff": None,
    "adaptive_input": False,
    "adaptive_input_cutoff": None,
    "tie_adaptive_weights": False,
    "tie_adaptive_proj": False,
}
SECTIONS = {
    "encoder": transformer_config.EncDecBaseConfig,
    "decoder": transformer_config.DecoderConfig,
    "quant_noise": transformer_config.QuantNoiseConfig,
}
# fairseq declares these with a type that it does not use
TYPES = {
    "encoder_layers_to_keep": Optional[str],
    "decoder_layers_to_keep": Optional[str],
    "decoder_input_dim": Optional[int],
    "decoder_output_dim": Optional[int],
}
# trunk → ending of an arch's name → preset
TRUNKS: dict[str, dict[str, str]] = {}


def register_archs(
    model: str, trunk: str, fill: Callable, presets: dict[str, str] | None = None
) -> None:
    """Register ``<trunk>_<token><ending>`` for each token, now and for layers registered later.

    ``presets`` has the preset of each ending, by default fairseq's architectures of the trunk.
    """
    stock = {name.removeprefix(trunk): name for name in ARCH_MODEL_INV_REGISTRY.get(trunk, ())}
    presets = TRUNKS[trunk] = presets or stock
    added: set[str] = set()

    def add_new() -> None:
        for token, head in tokens().items():
            for ending, preset in presets.items() if token not in added else ():
                register = register_model_architecture(model, f"{trunk}_{token}{ending}")
                try:
                    register(partial(fill, preset=preset, head=head))
                except ValueError as error:
                    raise UserError(
                        f"layer {token!r}: {error}; choose another name for the layer"
                    ) from None
            added.add(token)

    for axis in AXES:
        axis.registry.listen(add_new)


def names() -> list[str]:
    """Return all architectures with heads, sorted."""
    found = (f"{t}_{token}{end}" for t in TRUNKS for end in TRUNKS[t] for token in tokens())
    return sorted(found)


def fill_config(
    config: Namespace | DictConfig, preset: str, head: dict, config_class: type, trunk: dict,
    language_model: bool = False,
) -> None:  # fmt: skip
    """Give every unset option its value: the preset's, else fairseq's; see ``choose_head``.

    Filling twice changes nothing. Explicit values stay. ``head`` has the token's options, ``trunk``
    the defaults of head options on this trunk.
    """
    given = given_options(config)
    found = Namespace(**given)
    for name in adaptive_options(found):
        raise UserError(
            f"{flag(name)}: a head needs the whole vocabulary matrix; leave "
            "it out, or use a stock architecture"
        )
    ARCH_CONFIG_REGISTRY[preset](found)
    chosen = choose_head(given, head, trunk, language_model)
    stock = {f.name: f.metadata["stock"] for f in fields(config_class) if "stock" in f.metadata}
    set_options(config, stock | vars(found) | ADAPTIVE_OFF | chosen, config_class)


def plain_config(config: DictConfig, fill: Callable, preset: str) -> Namespace:
    """Complete a configuration in place, and return plain values."""
    fill(config, preset=preset, head={})
    return Namespace(**OmegaConf.to_container(config, resolve=True, enum_to_str=True))


def given_options(config: Namespace | DictConfig) -> dict:
    is_tree = isinstance(config, DictConfig)
    items = OmegaConf.to_container(config, enum_to_str=True) if is_tree else vars(config)
    return {name: value for name, value in items.items() if value is not None}


def set_options(config: Namespace | DictConfig, values: dict, config_class: type) -> None:
    """Put values into the fields of ``config_class``; fields that are new get their defaults."""
    found = {}
    for f in fields(config_class):
        if f.name in values:
            value, is_integer = values[f.name], f.type in (int, Optional[int])
            # fairseq's presets set some integers to False, which OmegaConf refuses
            found[f.name] = int(value) if is_integer and isinstance(value, bool) else value
        elif f.name not in config and f.default is not MISSING and not _refers(f.default):
            found[f.name] = f.default
    if isinstance(config, Namespace):
        vars(config).update(found)
        return
    with open_dict(config):
        config.update(found)


def adaptive_options(config: Namespace) -> list[str]:
    """Return the options of adaptive softmax or input that a configuration sets."""
    return [name for name in ADAPTIVE_OFF if getattr(config, name, None)]


def flat_config(name: str, stock: type, stock_model: str) -> type:
    """Make a dataclass with all options of ``stock``, flat, of the head and of relative positions.

    With fairseq's defaults a YAML file that names an architecture would silently get these instead.
    Here an option that any architecture of ``stock_model`` sets is ``None`` until the architecture
    fills it, and keeps fairseq's default as ``metadata["stock"]``.
    """
    controlled: set[str] = set()
    for arch in ARCH_MODEL_INV_REGISTRY[stock_model]:
        settings = Namespace()
        ARCH_CONFIG_REGISTRY[arch](settings)
        controlled |= vars(settings).keys()
    # the trainer compares it with 0 and cannot handle None; every architecture sets 0
    controlled -= {"base_layers"}
    flat = []
    for option, kind, default, metadata in options_of(stock):
        if option in controlled and not _refers(default):
            metadata, default = metadata | {"stock": default}, None
            kind = Optional[kind]
        flat.append((option, kind, field(default=default, metadata=metadata)))
    return make_dataclass(name, flat, bases=(RelativePositionOptions, HeadOptions))


def options_of(config: type, prefix: str = "") -> Iterator[tuple[str, Any, Any, dict]]:
    """Yield name, type, default and metadata of options, nested sections as ``section_name``."""
    for f in fields(config):
        if f.name in SECTIONS and config is transformer_config.TransformerConfig:
            yield from options_of(SECTIONS[f.name], prefix=f.name + "_")
        elif f.name != "_name":
            name = prefix + f.name
            default = f.default_factory() if f.default is MISSING else f.default
            # what refers to a section is missing in a flat dataclass
            default = None if prefix and _refers(default) else default
            yield name, TYPES.get(name, f.type), default, dict(f.metadata)


def _refers(default: object) -> bool:  # to the value of another option
    return isinstance(default, str) and default.startswith("${")
