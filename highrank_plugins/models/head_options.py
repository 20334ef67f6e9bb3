"""Derive the ``--head…`` options of every fairseq model from the registries of heads.

An option left unset (``None``) takes the default of the head or the pointwise function, whose names
and defaults come from ``highrank_plugins.heads``. A layer that is registered later, as in a
``--user-dir``, adds its options to all models.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore

from highrank_plugins.common.names import flag
from highrank_plugins.common.option_field import described
from highrank_plugins.heads import (
    head_names,
    head_options,
    pointwise_names,
    pointwise_options,
)
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.losses import IMPLEMENTATIONS

# which of gate_hidden, gate_shared and each frequent class has a bias
GATE_BIASES = {
    "paper": (False, False, True),
    "full": (True, True, True),
    "none": (False, False, False),
}
# options of heads → their names in fairseq; None: not an option there
RENAMED = {
    "frequent": "frequent_ratio",
    "gate_hidden_bias": "gate_biases",
    "gate_shared_bias": "gate_biases",
    "gate_class_bias": "gate_biases",
    "locked_dropout": None,
}
ADAPTED_DEFAULTS = {"frequent_ratio": 0.5, "gate_biases": "paper"}
# further options, which belong to no argument of a head's constructor
COMPANIONS = {"frequent_ratio": {"frequent_multiple": 64}}
HELP = {
    "components": "number of mixture components K; mixtape: a power of two",
    "context_scale": "s of the contexts h_k = s*tanh(A_k g + a_k); with shared embeddings the "
    "papers' 1 learns slowly",
    "dropout": "dropout on the context vectors h_k",
    "frequent_ratio": "r: the r*V most frequent classes have gates of their own (0 to 1)",
    "frequent_multiple": "round the number of these classes to the nearest multiple of N, as GPUs "
    "like it, unless it is below N; 1: do not round. A checkpoint keeps its number",
    "gates": "tree of sigmoids, or softmax, its control (any K; losses: reference, chunked)",
    "gate_biases": "biases of the gates: paper (of frequent classes), full (all) or none",
    "gate_dim": "width d2 of the gates' hidden layer",
    "gate_dropout": "dropout on the gates' hidden layer tanh(U g)",
    "gate_noise": "sd of Gaussian noise on the frequent gates in training (slow on CPU if not 0)",
    "gate_weight_norm": "normalise the rows of U to this constant length; 0: off",
    "gss_c": "c: where the slope changes from k (below) to 1 (above)",
    "gss_k": "k: slope far below c, greater than 0",
    "gss_learn": "train c and k",
    "plif_bound": "T: knots are spread evenly over [-T, T]",
    "plif_freeze": "do not train the slopes",
    "plif_init_sd": "sd of the slope logits at the start",
    "plif_knots": "number of knots",
    "softcap_cap": "c: logits stay between -c and c",
    "sigmoid_cap_height": "a: logits stay between 0 and a",
    "sigmoid_cap_shift": "b: added to each logit",
    "sigmoid_cap_scale": "s: width of the sigmoid",
    "multimax_init_sd": "sd of thresholds and strengths at the start",
    "monotone_mlp_bound": "the sigmoids are spread over [-bound, bound] at the start",
    "monotone_mlp_units": "number of sigmoids",
}
# texts for defaults that depend on structure, trunk or preset
VARYING_DEFAULTS = {
    "components": "15; mixtape 4; mos and moc in awd_lstm_lm's presets 1b and text8 7",
    "dropout": "0.0; mixtures in awd_lstm_lm's presets ptb and wt2 0.29",
    "frequent_ratio": "0.5; language models 0.1",
    "gss_k": "2.5; a softmax in awd_lstm_lm's preset wt2 3.0",
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
        "shared, else the decoder's output)"
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


def option_defaults(head: str, pointwise: str) -> dict:
    """Return ``{"head_…": default}`` of one pair; only arguments with a plain default are options.

    A flag of fairseq can only switch on, so an option that is on by default takes true or false.

    Raises:
        ValueError: unknown head or pointwise function; names the nearest one.
    """
    own = {RENAMED.get(name, name): default for name, default in head_options(head).items()}
    own |= {name: default for name, default in ADAPTED_DEFAULTS.items() if name in own}
    for name in COMPANIONS.keys() & own.keys():
        own |= COMPANIONS[name]
    own |= {f"{pointwise}_{name}": value for name, value in pointwise_options(pointwise).items()}
    return {
        f"head_{name}": "true" if default is True else default
        for name, default in own.items()
        if name is not None and isinstance(default, bool | int | float | str)
    }


def derived_defaults() -> dict:
    """Return the options of all heads and pointwise functions that are registered now.

    Raises:
        ValueError: two layers mean different things by one name.
    """
    pairs = [(head, "identity") for head in head_names()]
    pairs += [("softmax", pointwise) for pointwise in pointwise_names()]
    defaults: dict = {}
    for head, pointwise in pairs:
        for name, default in option_defaults(head, pointwise).items():
            known = defaults.setdefault(name, default)
            if name in {*COMMON, *rate_options()} or type(known) is not type(default):
                layer = head if pointwise == "identity" else pointwise
                raise ValueError(
                    f"{flag(name)} of {layer} is an option of other layers, too, with another "
                    "meaning or type; rename the argument of its constructor"
                )
    return defaults


def add_options() -> None:
    """Give the configurations of all models the options of all layers that are registered now."""
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
    own = name.removeprefix("head_")
    text = HELP.get(own, "see the documentation of the head")
    metadata = {"help": f"{text} (default: {VARYING_DEFAULTS.get(own, default)})"}
    return name, Optional[type(default)], field(default=None, metadata=metadata)


def _rate_field(name: str, pointwise: str) -> tuple:
    trained = POINTWISE.find(pointwise).own_rate
    text = (
        f"learning rate of {pointwise}'s {trained.replace('_', ' ')} while the other parameters "
        "have the first --lr; a schedule changes both alike (default: theirs)"
    )
    return name, Optional[float], field(default=None, metadata={"help": text})


HEADS.listen(add_options)
POINTWISE.listen(add_options)
