"""Make flat fairseq dataclasses; options that an arch controls are ``None`` until it fills them.

fairseq's own dataclasses carry defaults, so a YAML file that names an architecture silently gets
these instead. With ``None``, the command line, YAML and checkpoints all follow the architecture.
"""

import dataclasses
from argparse import Namespace
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Optional, Union, get_args, get_origin

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY
from fairseq.models.transformer import transformer_config

from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.models.relative_positions import RelativePositionOptions

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


@dataclass
class Option:
    """Describe one field of a flat dataclass."""

    name: str
    type: Any
    default: Any
    metadata: dict


def options_of(config: type, prefix: str = "") -> list[Option]:
    """Return the fields of a fairseq dataclass, nested sections as ``section_name``."""
    found = []
    for f in fields(config):
        if f.name == "_name":
            continue
        if not prefix and f.name in SECTIONS and config is transformer_config.TransformerConfig:
            found += options_of(SECTIONS[f.name], prefix=f.name + "_")
            continue
        default = f.default if f.default is not dataclasses.MISSING else f.default_factory()
        name = prefix + f.name
        if prefix and isinstance(default, str) and default.startswith("${"):
            default = None  # refers to a section that is missing in a flat dataclass
        found.append(Option(name, TYPES.get(name, f.type), default, dict(f.metadata)))
    return found


def flat_config(name: str, stock: type, stock_model: str) -> type:
    """Make a dataclass with all options of ``stock``, flat, of the head and of relative positions.

    Args:
        name: of the new class.
        stock: fairseq's dataclass.
        stock_model: registered name whose architectures control some fields. These fields default
            to ``None`` and keep fairseq's default as ``metadata["stock"]``.
    """
    controlled = arch_keys(stock_model)
    flat = [_field(option, option.name in controlled) for option in options_of(stock)]
    return make_dataclass(name, flat, bases=(RelativePositionOptions, HeadOptions))


def arch_keys(stock_model: str) -> set[str]:
    """Return the options that any architecture of ``stock_model`` sets."""
    keys: set[str] = set()
    for arch in ARCH_MODEL_INV_REGISTRY[stock_model]:
        settings = Namespace()
        ARCH_CONFIG_REGISTRY[arch](settings)
        keys |= vars(settings).keys()
    # the trainer compares it with 0 and cannot handle None; every architecture sets 0
    return keys - {"base_layers"}


def inner_type(annotation: Any) -> Any:
    """Return ``X`` of ``Optional[X]``, else the annotation itself."""
    return get_args(annotation)[0] if _is_optional(annotation) else annotation


def _is_optional(annotation: Any) -> bool:
    return get_origin(annotation) is Union and type(None) in get_args(annotation)


def _field(option: Option, controlled: bool) -> tuple:
    metadata, default, kind = option.metadata, option.default, option.type
    interpolated = isinstance(default, str) and default.startswith("${")
    if controlled and not interpolated:
        metadata = metadata | {"stock": default}
        kind = kind if _is_optional(kind) else Optional[kind]
        default = None
    return option.name, kind, field(default=default, metadata=metadata)


def stock_defaults(config: type) -> dict:
    """Return fairseq's defaults of the arch-controlled options."""
    return {f.name: f.metadata["stock"] for f in fields(config) if "stock" in f.metadata}


def field_types(config: type) -> dict:
    """Return ``{name: type}`` of a fairseq dataclass, without ``Optional``."""
    return {f.name: inner_type(f.type) for f in fields(config)}
