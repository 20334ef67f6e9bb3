"""Join a trunk of Hugging Face and an output layer to a causal language model."""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from torch import Tensor, nn
from transformers import AutoModel, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.huggingface.config import HighrankConfig
from highrank_plugins.huggingface.trainers import (
    FusedCall,
    answer,
    check_modules,
    fused_call,
    nll_per_item,
    seen_by_caller,
)

# what only the trunk knows; experts that cannot be set would refuse every mixture of experts
TRAITS = ("_can_set_experts_implementation", "_is_stateful")
CACHES = ("cache", "past_key_values")  # the new name and the old one


class HighrankForCausalLM(PreTrainedModel, GenerationMixin):
    """Predict tokens with a trunk of Hugging Face, `model`, and an output layer, `head`.

    In training, a call with labels computes the loss alone and holds no N × M numbers. Otherwise
    `logits` are the head's, or its log-probabilities where it has none: in either case their
    softmax is the model's distribution.

    Args:
        config: the trunk, the head and their options.
        trunk: a living trunk; None builds a new one of the configuration.
        head: a living head, with the trunk's embedding if it is tied; None builds a new one.
    """

    config_class = HighrankConfig
    config: HighrankConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = True  # num_items_in_batch
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = False

    def __init__(
        self, config: HighrankConfig, trunk: PreTrainedModel | None = None, head: Head | None = None
    ) -> None:
        text = config.decoder()
        kind = transformers.MODEL_MAPPING[type(text)] if trunk is None else type(trunk)
        self._trunk_takes = set(inspect.signature(kind.forward).parameters)
        if kind._is_stateful and CACHES[0] not in self._trunk_takes:
            raise UserError(
                f"{kind.__name__}: generation here would lose the trunk's state, which is no "
                "cache; Mamba and its hybrids need a newer transformers (5.24)"
            )
        self.__dict__ |= {trait: getattr(kind, trait) for trait in TRAITS}
        super().__init__(config)
        self.model = AutoModel.from_config(text) if trunk is None else trunk
        self.head = config.build_head() if head is None else head
        self.head.states_function = False  # the configuration has the options
        self._head_types = [type(module) for module in self.head.modules()]
        self._fused: FusedCall | None = None
        if config.tie_word_embeddings:
            self._name_tied_matrix()
        if trunk is not None:  # post_init draws what is not marked
            for part in (*self.modules(), *self.parameters(), *self.buffers()):
                part._is_hf_initialized = True
        self.post_init()

    def _name_tied_matrix(self) -> None:
        embedding = self.model.get_input_embeddings()
        if embedding.weight.shape != self.head.weight.shape:
            raise UserError(
                f"tie_word_embeddings: the embedding has shape {tuple(embedding.weight.shape)}, "
                f"the head's matrix {tuple(self.head.weight.shape)}; leave out embed_dim, or untie"
            )
        name = next(n for n, module in self.model.named_modules() if module is embedding)
        self._tied_weights_keys = {"head.weight": f"model.{name}.weight"}
        self.head.shares_weight = True

    def _init_weights(self, module: nn.Module) -> None:
        """Give a module of the head its first values, but for parameters that were loaded."""
        if module is self.head:
            self.head.reset_parameters(submodules=False)
            if not self.head.shares_weight:
                deviation = getattr(self.config.text_config, "initializer_range", 0.02)
                nn.init.normal_(self.head.weight, std=deviation)
        elif any(module is part for part in self.head.modules()):
            own = list(module.parameters(recurse=False))
            loaded = [(p, p.clone()) for p in own if getattr(p, "_is_hf_initialized", False)]
            if reset := getattr(module, "reset_parameters", None):
                reset()
            for parameter, values in loaded:
                parameter.copy_(values)

    # -- what libraries ask of a model -----------------------------------------------------------

    def get_output_embeddings(self) -> nn.Module:
        """Return the head to accelerate, PEFT and transformers, and a refusal to trainers.

        accelerate compares its matrix with the embedding, PEFT and quantisers spare the module. A
        trainer that multiplies with the matrix would train a softmax.
        """
        return seen_by_caller(self._modules["head"], self.config.head)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Refuse another output layer."""
        raise UserError("set_output_embeddings: the output layer is model.head; use replace_head")

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> nn.Module:
        """Return the embedding if its size stays; refuse another size."""
        if new_num_tokens not in (None, self.head.num_classes):
            raise UserError(
                f"resize_token_embeddings({new_num_tokens}): {self.config.head} has "
                f"{self.head.num_classes} classes; resize the original model before replace_head"
            )
        return self.get_input_embeddings()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and (call := fused_call(value)):
            self.__dict__["_fused"] = call
        else:
            super().__setattr__(name, value)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: folders import this class and hold no copy of its file."""

    # -- the computation -------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, cache: Any = None,
        inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Return the loss of labels, which are shifted here, and logits; see the class.

        Args:
            kwargs: what the trunk takes, and `num_items_in_batch`, the number of labels in all
                accumulated batches, by which the sum of the losses is divided.
        """
        # no further parameter may have "label" in its name: Trainer would wait for it
        shift_labels, items, fused, return_dict = (
            kwargs.pop(name, None)
            for name in ("shift_labels", "num_items_in_batch", "fused_lm_head", "return_dict")
        )
        kwargs |= {"position_ids": position_ids, "cache": cache, "inputs_embeds": inputs_embeds}
        out, routing = self._run_trunk(input_ids, attention_mask, kwargs)
        features, loss, logits = out.last_hidden_state, None, None
        if self.config.feature_scale != 1:
            features = features * self.config.feature_scale
        target, predicting = shift_labels, features
        if labels is not None and shift_labels is None:
            target, predicting = labels[:, 1:], features[:, :-1]
        if target is not None:
            batch = predicting, target.to(features.device), items
            if fused and self._fused is not None:
                output = answer(self._fused, self.head, batch)
                output.loss, output.aux_loss = self._with_routing(output.loss, routing), routing
                return output
            loss = self._with_routing(nll_per_item(self.head, batch), routing)
        if target is None or not self.training:
            last = isinstance(logits_to_keep, int)
            keep = slice(-logits_to_keep, None) if last else logits_to_keep
            logits = self.head(features[:, keep], scores=True)
        known = CausalLMOutputWithPast.__dataclass_fields__
        others = {n: out.get(n) for n in (*CACHES, "hidden_states", "attentions") if n in known}
        output = CausalLMOutputWithPast(loss=loss, logits=logits, **others)
        return output.to_tuple() if return_dict is False else output

    def _run_trunk(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, options: dict[str, Any]
    ) -> tuple[Any, Tensor | None]:
        """Return the trunk's outputs and the loss of its router, if it has one."""
        takes, text = self._trunk_takes, self.config.text_config
        past = next((found for n in CACHES if (found := options.pop(n, None)) is not None), None)
        options |= {"attention_mask": attention_mask, CACHES[CACHES[0] not in takes]: past}
        if options.get("output_router_logits") is None and hasattr(text, "output_router_logits"):
            options["output_router_logits"] = text.output_router_logits
        unknown = {"position_ids", "attention_mask"} - takes
        given = {n: v for n, v in options.items() if v is not None and n not in unknown}
        out = self.model(input_ids=input_ids, **given)
        check_modules(self.head, self._head_types)
        if not given.get("output_router_logits"):
            return out, None
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        experts = getattr(text, "num_experts", None) or text.num_local_experts
        chosen = text.num_experts_per_tok
        return out, load_balancing_loss_func(out.router_logits, experts, chosen, attention_mask)

    def _with_routing(self, loss: Tensor, routing: Tensor | None) -> Tensor:
        """Add the loss of the router, as the trunk's own model does."""
        factor = getattr(self.config.text_config, "router_aux_loss_coef", 0.0)
        return loss if routing is None else loss + factor * routing.to(loss.device)
