"""Describe a language model of Hugging Face with an output layer of this package."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head, build_head, head_options, tokens
from highrank_plugins.heads.base import HEADS

# what the base class would write into a trunk's configuration, None included
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
TIED = "tie_word_embeddings"
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
OWN = ("text_config", "head", "head_options", "feature_scale")


# what the base class has is not the trunk's, apart from what the trunk itself is to return
BASE = {*dir(PreTrainedConfig), *vars(PreTrainedConfig()), *OWN, *TOKENS, TIED}
BASE -= {"output_hidden_states", "output_attentions", "chunk_size_feed_forward"}
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# what save_pretrained writes beside config.json, for Auto classes with trust_remote_code
MODULE = "modeling_highrank"
CLASSES = {"AutoConfig": "HighrankConfig", "AutoModelForCausalLM": "HighrankForCausalLM"}


class HighrankConfig(PreTrainedConfig):
    """Configure a trunk of Hugging Face and an output layer of this package.

    Other names, such as `vocab_size` and `use_cache`, are the trunk's: read, given and set there.

    Args:
        text_config: configuration of a decoder, e.g. a `LlamaConfig`, or its dictionary.
        head: name of the output layer, as in `build_head`.
        head_options: those of `build_head`, e.g. `{"components": 4}`; unless given, `bias` is
            False, and a cap of the logits that of the trunk's own model.
        feature_scale: factor of the features; None takes the trunk's, e.g. Cohere's `logit_scale`.
        kwargs: what every configuration of transformers has. `tie_word_embeddings` and the ids of
            special tokens are the trunk's unless given.
    """

    model_type = "highrank"
    sub_configs = {"text_config": AutoConfig}  # noqa: RUF012 (transformers reads it of the class)

    def __init__(
        self, text_config: Any = None, head: str = "softmax",
        head_options: Mapping[str, Any] | None = None, feature_scale: float | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if isinstance(text_config, Mapping) and "model_type" in text_config:
            text_config = AutoConfig.for_model(**text_config)
        check_names(kwargs, text_config)
        taken = {n: kwargs.pop(n) for n in [*kwargs] if n not in BASE and hasattr(text_config, n)}
        self.text_config: Any = copy.deepcopy(text_config) if taken else text_config
        for name, value in taken.items():
            setattr(self.text_config, name, value)
        given = dict(head_options or {})
        given |= {n: value.tolist() for n, value in given.items() if hasattr(value, "tolist")}
        self.head, self.head_options = head, {"bias": False, **given}
        own = None if text_config is None else logit_factor(self.text_config)
        self.feature_scale = own if feature_scale is None else feature_scale
        self.head_options = own_cap(self.text_config, head, given) | self.head_options
        for part in ("pointwise", "vocabulary"):
            if not isinstance(function := self.head_options.get(part, ""), str):
                raise UserError(f"{part}: expected a name, got a {type(function).__name__}; "
                                "its options go into head_options")  # fmt: skip
        if text_config is not None:
            self.decoder()
            kwargs.setdefault(TIED, getattr(text_config, TIED, False))
            # a living trunk whose implementation becomes None builds no causal mask
            for name in (*TOKENS, *IMPLEMENTATIONS):
                there = name if name in TOKENS else f"_{name}"
                kwargs.setdefault(name, getattr(text_config, there, None))
        super().__init__(**kwargs)

    def decoder(self) -> Any:
        """Return the trunk's configuration; refuse one that is not a decoder's."""
        text = self.text_config
        if getattr(text, "is_encoder_decoder", False) or not hasattr(text, "vocab_size"):
            got = "none" if text is None else type(text).__name__
            raise UserError(f"text_config must be the configuration of a decoder, got {got}")
        return text

    def build_head(self, weight: nn.Parameter | None = None) -> Head:
        """Build the output layer, of a matrix to share if one is given."""
        text = self.decoder()
        features = getattr(text, "word_embed_proj_dim", None) or text.hidden_size
        sizes = {"num_classes": text.vocab_size, "feature_dim": features}
        head = build_head(self.head, weight=weight, **sizes, **self.head_options)
        chosen = self.head_options.keys() & {"frequent", "frequent_ratio"}
        if chosen and head.needs_sorted_classes:  # without a choice build_head warns
            warnings.warn(f"{self.head}: the first ids of a tokenizer are not its most frequent "
                          "ones, which shall have gates of their own: class_counts= or "
                          "frequent_classes= names them", stacklevel=2)  # fmt: skip
        return head

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save it, with a module by which `trust_remote_code=True` finds our classes."""
        self.auto_map = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
        super().save_pretrained(save_directory, *args, **kwargs)
        package, _, _ = __name__.rpartition(".")
        line = f"from {package} import {', '.join(CLASSES.values())}\n"
        (Path(save_directory) / f"{MODULE}.py").write_text(line, encoding="utf-8")

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: folders import this class and hold no copy of its file."""

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trunk's, from which caches and generation are planned."""
        return self if self.text_config is None else self.text_config

    def __setattr__(self, name: str, value: Any) -> None:
        trunk = self.__dict__.get("text_config")
        if not name.startswith("_") and name not in BASE and hasattr(trunk, name):
            setattr(trunk, name, value)
            if name not in vars(self) and not hasattr(PreTrainedConfig, name):
                return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        trunk = self.__dict__.get("text_config")
        if trunk is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(trunk, name)


def check_names(given: Mapping[str, Any], text: Any) -> None:
    """Refuse names that the base class would keep, and that would change nothing."""
    options = HEADS.common.union(*map(head_options, HEADS.names()))
    for name in given:
        near = "" if hasattr(text, name) else did_you_mean(name, OWN)
        if name in options or near:
            hint = "; options of the head go into head_options" if name in options else near
            raise UserError(f"HighrankConfig: unknown argument {name!r}{hint}")


def own_cap(text: Any, head: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that caps as the trunk's own model does, unless another one is given."""
    function = tokens().get(head, {}).get("head_pointwise", "softcap")
    capped = logit_cap(text) and function == "softcap" and "pointwise" not in given
    return {"pointwise": "softcap", "cap": logit_cap(text)} if capped else {}


def logit_cap(text: Any) -> float | None:
    """Return the cap c of the logits c·tanh(z/c) that some models have: Gemma 2, xLSTM."""
    return next((cap for name in CAPS if (cap := getattr(text, name, None))), None)


def logit_factor(text: Any) -> float:
    """Return the factor of the logits that some models have: Cohere, Granite, Falcon-H1."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if isinstance(value := getattr(text, name, None), int | float):
            return float(value)
    scaling = float(getattr(text, "logits_scaling", None) or 1)
    return scaling if getattr(text, "model_type", "") == "hyperclovax" else 1 / scaling
