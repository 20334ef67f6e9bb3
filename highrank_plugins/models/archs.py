"""Register architectures: every token of a head on every stock preset of a trunk.

``transformer_mos_iwslt_de_en`` is fairseq's ``transformer_iwslt_de_en`` with the head ``mos``.
"""

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    register_model_architecture,
)
from omegaconf import DictConfig, OmegaConf, open_dict

from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.heads.tokens import tokens
from highrank_plugins.models.flat_config import field_types, stock_defaults
from highrank_plugins.models.head_from_options import choose_head

logger = logging.getLogger(__name__)

# adaptive softmax and input split the vocabulary matrix that a head needs whole
ADAPTIVE_OFF = {
    "adaptive_softmax_cutoff": None,
    "adaptive_input": False,
    "adaptive_input_cutoff": None,
    "tie_adaptive_weights": False,
    "tie_adaptive_proj": False,
}
# stock models whose presets have been given heads
TRUNKS: list[str] = []


def for_every_token(add: Callable[[str, dict], None]) -> None:
    """Call ``add(token, head)`` for each token, now and for layers that are registered later.

    A token is added once, also if its layer is registered again.
    """
    added: set[str] = set()

    def add_new() -> None:
        for token, head in tokens().items():
            if token not in added:
                try:
                    add(token, head)
                except ValueError as error:
                    raise UserError(
                        f"layer {token!r}: {error}; choose another name for the layer"
                    ) from None
                added.add(token)

    HEADS.listen(add_new)
    POINTWISE.listen(add_new)


def register_archs(model: str, stock_model: str, fill: Callable) -> None:
    """Register every token on every preset of ``stock_model``.

    Args:
        model: our registered model.
        fill: ``fill(config, stock_arch, head)`` completes a configuration in place.
    """
    TRUNKS.append(stock_model)
    presets = list(ARCH_MODEL_INV_REGISTRY[stock_model])

    def add(token: str, head: dict) -> None:
        for stock in presets:
            name = arch_name(stock_model, token, stock)
            register_model_architecture(model, name)(partial(fill, stock_arch=stock, head=head))

    for_every_token(add)


def arch_name(stock_model: str, token: str, stock_arch: str) -> str:
    """Return ``transformer_mos_iwslt_de_en`` for transformer, mos and transformer_iwslt_de_en."""
    return f"{stock_model}_{token}{stock_arch.removeprefix(stock_model)}"


def fill_config(
    config: Namespace | DictConfig,
    stock_arch: str,
    head: dict,
    config_class: type,
    trunk: dict,
    language_model: bool = False,
) -> None:
    """Give every unset option its value: the preset's, else fairseq's; see ``choose_head``.

    Filling twice changes nothing. Explicit values stay.

    Args:
        config: changed in place.
        stock_arch: fairseq's architecture.
        head: the token's head options.
        config_class: made by ``flat_config``.
        trunk: defaults of head options on this trunk.
        language_model: whether the trunk is a language model.
    """
    given = given_options(config)
    _reject_adaptive(given)
    preset = Namespace(**given)
    ARCH_CONFIG_REGISTRY[stock_arch](preset)
    _drop_adaptive(preset, stock_arch)
    chosen = choose_head(given, head, trunk, language_model)
    values = stock_defaults(config_class) | vars(preset) | chosen
    set_options(config, values, config_class)


def plain_config(config: DictConfig, fill: Callable, stock_arch: str) -> Namespace:
    """Complete a configuration in place by ``fill``, and return its values as plain values."""
    fill(config, stock_arch=stock_arch, head={})
    return Namespace(**OmegaConf.to_container(config, resolve=True, enum_to_str=True))


def given_options(config: Namespace | DictConfig) -> dict:
    """Return the options that are set, by name."""
    is_tree = isinstance(config, DictConfig)
    items = OmegaConf.to_container(config, enum_to_str=True) if is_tree else vars(config)
    return {name: value for name, value in items.items() if value is not None}


def set_options(config: Namespace | DictConfig, values: dict, config_class: type) -> None:
    """Put ``values`` into ``config``, as far as ``config_class`` has such fields.

    Options that ``config`` does not know, since its checkpoint is older than they are, get their
    defaults.
    """
    types = field_types(config_class)
    values = {k: _cast(types[k], v) for k, v in values.items() if k in types}
    values = {f.name: f.default for f in fields(config_class) if _is_new(f, config)} | values
    if isinstance(config, Namespace):
        vars(config).update(values)
        return
    with open_dict(config):
        config.update(values)


def _is_new(option: Field, config: Namespace | DictConfig) -> bool:
    plain = option.default is not MISSING and not str(option.default).startswith("${")
    return plain and option.name not in config


def _cast(kind: Any, value: Any) -> Any:
    """Convert an integer option: fairseq's presets set some to False, which OmegaConf refuses."""
    return int(value) if kind is int and isinstance(value, bool) else value


def _reject_adaptive(given: dict) -> None:
    for name in ADAPTIVE_OFF:
        if given.get(name):
            raise UserError(
                f"{flag(name)}: a head needs the whole vocabulary matrix; leave "
                "it out, or use a stock architecture"
            )


def _drop_adaptive(preset: Namespace, stock_arch: str) -> None:
    used = adaptive_options(preset)
    if used:
        _log_once(f"{stock_arch}: the head replaces these options: {', '.join(used)}")
    vars(preset).update(ADAPTIVE_OFF)


def adaptive_options(preset: Namespace) -> list[str]:
    """Return the options of adaptive softmax or input that a stock preset sets."""
    return [name for name in ADAPTIVE_OFF if getattr(preset, name, None)]


@cache
def _log_once(message: str) -> None:
    logger.info(message)
