"""Choose the head: explicit options, then the architecture's, then the head's defaults."""

from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.heads.tokens import with_layer_of_arch
from highrank_plugins.models.head_options import (
    COMMON,
    derived_defaults,
    layers_with,
    option_defaults,
    rate_options,
)


def choose_head(options: dict, arch: dict, trunk: dict, language_model: bool = False) -> dict:
    """Return the ``head…`` options that depend on the head, with their final values.

    Args:
        options: explicit values by name; ``None`` or absent is unset.
        arch: the architecture's own, for example ``{"head": "softmax", "head_pointwise": "gss"}``.
            An explicit ``head`` of another structure drops them all.
        trunk: the trunk's own defaults, of ``head_bias`` and of options that some heads have.
        language_model: take a layer's defaults for language models, where they differ.
    """
    given = {k: v for k, v in options.items() if k.startswith("head") and v is not None}
    given = with_layer_of_arch(given, arch)
    head = given.setdefault("head", "softmax")
    pointwise = given.setdefault("head_pointwise", "identity")
    _require_known(head, pointwise)
    defaults = option_defaults(head, pointwise, language_model)
    of_layers = derived_defaults().keys()
    defaults |= {k: v for k, v in trunk.items() if k in defaults or k not in of_layers}
    _reject_foreign(given, defaults, {*of_layers, *rate_options()})
    return defaults | given


def _require_known(head: str, pointwise: str) -> None:
    if head in pointwise_names():
        raise UserError(
            f"--head {head}: {head} acts on the logits of a head; use --head-pointwise {head}"
        )
    try:
        HEADS.find(head)
        POINTWISE.find(pointwise)
    except ValueError as error:
        option = "--head-pointwise" if head in head_names() else "--head"
        raise UserError(f"{option}: {error}; a layer of your own needs its --user-dir") from None


def _reject_foreign(given: dict, defaults: dict, of_layers: set[str]) -> None:
    rates = {name for name, owner in rate_options().items() if owner == given["head_pointwise"]}
    own = {*defaults, *COMMON, *rates}
    for name in given:
        if name in of_layers and name not in own:
            listed = ", ".join(map(flag, sorted(own)))
            raise UserError(
                f"{flag(name)}: --head {given['head']} with --head-pointwise "
                f"{given['head_pointwise']} has no such option; it has {listed}. Remove the "
                f"option, or choose a layer that has it: {', '.join(layers_with(name))}"
            )
