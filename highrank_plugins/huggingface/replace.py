"""Exchange the output layer of a living model, and begin with the function that it computes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedModel

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.heads.checks import fill_matrix
from highrank_plugins.heads.libraries import evaluating
from highrank_plugins.heads.mixtures import Mixture, near_features
from highrank_plugins.huggingface.config import HighrankConfig, logit_cap
from highrank_plugins.huggingface.model import HighrankForCausalLM, spread_ids

STARTS = ("lm_head", "weight", "fresh")


def replace_head(
    model: PreTrainedModel, head: str, *, start: str = "lm_head", batch: Tensor | None = None,
    noise: float = 0.02, most_kl: float = 5e-3, **options: Any,
) -> HighrankForCausalLM:  # fmt: skip
    """Return the model with another output layer; it shares the trunk and gives up `lm_head`.

    Caps and factors of the model's own logits, its bias and a tied embedding are taken over.

    Args:
        model: a causal language model of transformers whose output layer is an `nn.Linear`.
        head: name of the new layer, as in `build_head`.
        start: "lm_head" begins with the model's own function, "weight" with its matrix alone, which
            predicts no better than "fresh", the layer's usual start.
        batch: token ids [B, T] of real text, on which start="lm_head" measures.
        noise: relative deviation of the contexts from the features; 0 keeps those of a MoS equal.
        most_kl: largest mean KL divergence to the model's own distribution, in nats.
        options: those of `build_head`, such as `components`.
    """
    own, text = own_layer(model)
    width = options.get("embed_dim")
    check_start(start, own.in_features, options)
    spread = spread_ids(len(own.weight), own.weight)
    ids = spread if batch is None else checked(batch, len(own.weight))
    tied = own.weight is model.get_input_embeddings().weight and width in (None, own.in_features)
    options = {"bias": own.bias is not None, **options}
    config = HighrankConfig(text, head, options, tie_word_embeddings=tied)
    cap, scale = logit_cap(text), float(config.feature_scale or 1)
    kept = [config.head_options.get(name) for name in ("pointwise", "cap")] == ["softcap", cap]
    if cap and start == "lm_head" and not kept:
        raise UserError(f"replace_head: the model's own logits are capped at {cap}; leave "
                        "pointwise and cap out, or set start='weight' or 'fresh'")  # fmt: skip
    for tokens in (spread, ids):
        check_logits(model, own, tokens, cap, scale)
    layer = first_layer(config, own, copied=start != "fresh")
    if start == "lm_head":
        given = checked(batch, len(own.weight)) if isinstance(layer, Mixture) else ids
        kl = keep_function(model, layer, scale, given, noise, most_kl)
        if isinstance(layer, Mixture):
            config.head_options["context_scale"] = layer.context_scale
            print(f"start='lm_head': context_scale {layer.context_scale:.3g}, KL {kl:.1e} nats")
    replaced = HighrankForCausalLM(config, trunk=model.base_model, head=layer)
    replaced.generation_config = copy.deepcopy(model.generation_config)
    return replaced.train(model.training)


def check_start(start: str, own: int, options: Mapping[str, Any]) -> None:
    """Refuse an unknown start, and options that do not go with it."""
    width = options.get("embed_dim")
    if start not in STARTS:
        raise UserError(f"start: expected one of {', '.join(STARTS)}, got {start!r}")
    if start == "lm_head" and "context_scale" in options:
        raise UserError("context_scale: start='lm_head' takes it from batch; leave it out, or set "
                        "start='weight' or 'fresh'")  # fmt: skip
    if start != "fresh" and width not in (None, own):
        raise UserError(f"replace_head: embed_dim {width}: the model's own is {own}; "
                        "leave embed_dim out, or set start='fresh'")  # fmt: skip


@torch.no_grad()
def first_layer(config: HighrankConfig, own: Any, copied: bool) -> Head:
    """Build the new layer, with the matrix and the bias of the model's own if they are copied."""
    plain = config.head_options.get("vocabulary", "plain") == "plain"
    shared = config.tie_word_embeddings or (copied and plain)
    layer = config.build_head(own.weight if shared else None)
    if not shared:
        deviation = getattr(config.text_config, "initializer_range", 0.02)
        fill_matrix(layer, lambda m: m.copy_(own.weight) if copied else m.normal_(std=deviation))
    if copied and own.bias is not None and layer.bias is not None:
        layer.bias.copy_(own.bias)
    return layer.to(own.weight)


def own_layer(model: Any) -> tuple[Any, Any]:
    """Return a model's output layer and the configuration of its decoder."""
    own = text = None
    if isinstance(model, PreTrainedModel) and not isinstance(model, HighrankForCausalLM):
        trunk, own = model.base_model, model.get_output_embeddings()
        text = model.config.get_text_config(decoder=True)
        devices = set((getattr(model, "hf_device_map", None) or {}).values())
        is_built = isinstance(trunk, MODEL_MAPPING.get(type(model.config), ()))  # by AutoModel
        if trunk is model or text is not model.config or not is_built or len(devices) > 1:
            own = None
    if type(own) is not nn.Linear or not own.weight.is_floating_point():
        raise UserError(
            f"replace_head: {type(model).__name__} is not supported here; give an original causal "
            "language model of transformers, a text decoder alone (of a larger one its text "
            "model), on one device, with an unquantised nn.Linear as output layer"
        )
    return own, text


def checked(batch: Any, classes: int) -> Tensor:
    """Return token ids [B, T]; refuse anything else."""
    kind = (batch.dim(), batch.dtype) if torch.is_tensor(batch) else None
    if kind not in {(2, torch.int32), (2, torch.int64)}:
        raise UserError("start='lm_head' measures on token ids [B, T] of real text: batch=…")
    if not batch.numel() or not 0 <= int(batch.min()) <= int(batch.max()) < classes:
        raise UserError(f"batch: expected token ids from 0 to {classes - 1}, at least one")
    return batch


def check_logits(
    model: PreTrainedModel, own: nn.Linear, ids: Tensor, cap: float | None, scale: float
) -> None:
    """Refuse a model whose logits are not f(W (s g) + b): some transform features or mask ids."""
    with evaluating(model):
        wanted, features = model(ids).logits.float(), model.base_model(ids).last_hidden_state
        fits = features.size(-1) == own.in_features
        z = own(features * scale).float() if fits else wanted.new_empty(0)
    z = cap * (z / cap).tanh() if cap else z
    tolerance = max(1e-4, 2 * torch.finfo(own.weight.dtype).eps) * float(wanted.abs().max())
    if wanted.shape != z.shape or not torch.allclose(wanted, z, rtol=0, atol=tolerance):
        raise UserError(f"replace_head: {type(model).__name__} computes more than W g + b of its "
                        "trunk's features; this class is not supported")  # fmt: skip


def keep_function(
    model: PreTrainedModel, layer: Head, scale: float, batch: Any, noise: float, most_kl: float
) -> float:
    """Return the KL of a start with the model's own function; refuse one that does not keep it."""
    with evaluating(model), evaluating(layer):
        features = model.base_model(batch).last_hidden_state.flatten(0, 1) * scale
        reference = model(batch).logits.float().log_softmax(-1).flatten(0, 1)
        largest = float(features.abs().max())
        for _ in near_features(layer, largest, noise) if isinstance(layer, Mixture) else [1.0]:
            kl = float((reference.exp() * (reference - layer(features))).sum(-1).mean())
            if kl <= most_kl:
                return kl
    raise UserError(f"start='lm_head': KL {kl:.1e} > {most_kl:g} nats from the model's own; set a "
                    "smaller noise=, leave pointwise out, or set start='fresh'")  # fmt: skip
