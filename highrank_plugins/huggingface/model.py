"""Join a trunk of Hugging Face and an output layer to a causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast

from highrank_plugins.common.certificate import compare_folder
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.heads.checks import fill_matrix
from highrank_plugins.heads.libraries import (
    check_modules,
    evaluating,
    seen_by_caller,
    token_statistics,
)
from highrank_plugins.huggingface.config import HighrankConfig

# what only the trunk knows; experts that cannot be set would refuse every mixture of experts
TRAITS = ("_can_set_experts_implementation", "_is_stateful")
CACHES = ("cache", "past_key_values")  # the new name and the old one
FUNCTION = "head._extra_state"  # in files only: accelerate would shard it
ROUTER_FACTORS = ("router_aux_loss_coef", "aux_loss_coef")
IGNORED = -100  # label of tokens without a loss, in transformers and TRL
Batch = tuple[Tensor, Tensor, Any]  # features [B, T, F], target [B, T], num_items_in_batch or None
METRICS = {"log_probs", "entropy", "is_top1"}  # what SFT asks for; its entropy has no gradient


def spread_ids(classes: int, like: Tensor) -> Tensor:
    """Return token ids [4, 16] from the whole vocabulary; the first are often special tokens."""
    return (torch.arange(64, device=like.device) * 7919 % 64 * (classes - 1) // 63).view(4, 16)


def check_causal(trunk: PreTrainedModel, like: Tensor) -> None:
    """Refuse a trunk whose features depend on later tokens: it would train on the future."""
    ids = spread_ids(trunk.config.vocab_size, like)[:2, :8]
    ids[1, :-1] = ids[0, :-1]
    with evaluating(trunk):
        features = trunk(ids).last_hidden_state.float()
    moved = (features[0, :-1] - features[1, :-1]).abs().max()
    if moved > max(1e-5, 2 * torch.finfo(like.dtype).eps) * features.abs().max():
        raise UserError(f"{type(trunk).__name__}: its features depend on later tokens, so it would "
                        "train on the future; give a decoder (is_decoder=True)")  # fmt: skip


class WithSignature:
    """Bind `forward` with its trunk's parameters, since `Trainer` drops the columns of others."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __get__(self, model: Any, kind: type) -> Any:
        if model is None:
            return self.forward
        bound: Any = partial(self.forward, model)
        own = inspect.signature(bound).parameters
        *named, rest = own.values()
        names = [n for n in model._trunk_takes if n not in own and "label" not in n]
        more = [named[-1].replace(name=n, kind=inspect.Parameter.KEYWORD_ONLY) for n in names]
        bound.__signature__ = inspect.Signature([*named, *more, rest])
        return bound


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
    is_custom_code = classmethod(lambda cls: False)  # or buffers made for a trunk's parts are lost
    register_for_auto_class = HighrankConfig.register_for_auto_class  # does nothing
    _keys_to_ignore_on_load_unexpected = [rf"^{FUNCTION}$"]  # noqa: RUF012 (as transformers does)

    def __init__(
        self, config: HighrankConfig, trunk: PreTrainedModel | None = None, head: Head | None = None
    ) -> None:
        text = config.decoder()
        kind = transformers.MODEL_MAPPING[type(text)] if trunk is None else type(trunk)
        self._trunk_takes = set(inspect.signature(kind.forward).parameters)
        takes = self._trunk_takes & set(CACHES[: 1 if kind._is_stateful else 2])
        if not takes or text.model_type == "xlm":
            raise UserError(f"{kind.__name__} is not supported: it takes no cache, which generation"
                            " here needs (Mamba and its hybrids do in transformers 5.24), or scores"
                            " labels unshifted")  # fmt: skip
        self.__dict__ |= {trait: getattr(kind, trait) for trait in TRAITS}
        super().__init__(config)
        self.model = AutoModel.from_config(text) if trunk is None else trunk
        self.head = config.build_head().to(self.model.dtype) if head is None else head
        self.head.states_function = False  # the configuration has the options
        self._head_types = [type(module) for module in self.head.modules()]
        self._fused: FusedCall | None = None
        if config.tie_word_embeddings:
            self._name_tied_matrix()
        if trunk is not None:  # post_init draws what is not marked
            for part in (*self.modules(), *self.parameters(), *self.buffers()):
                part._is_hf_initialized = True
        self.post_init()
        if not (any_parameter := next(self.model.parameters())).is_meta:
            check_causal(self.model, any_parameter)

    def _name_tied_matrix(self) -> None:
        embedding = self.model.get_input_embeddings()
        if embedding.weight.shape != self.head.weight.shape:
            shapes = [tuple(part.weight.shape) for part in (embedding, self.head)]
            raise UserError(f"tie_word_embeddings: embedding and head have shapes {shapes}; leave "
                            "out embed_dim, or set tie_word_embeddings=False")  # fmt: skip
        name = next(n for n, module in self.named_modules() if module is embedding)
        own = "weight" if "weight" in self.head._parameters else "parametrizations.weight.original"
        self._tied_weights_keys = {f"head.{own}": f"{name}.weight"}
        self.head.shares_weight = True

    def _init_weights(self, module: nn.Module) -> None:
        """Give a module of the head its first values, but for parameters that were loaded."""
        own = list(module.parameters(recurse=False))
        if module is self.head and "weight" not in module._parameters:
            own += module.get_submodule("parametrizations.weight").parameters()
        loaded = [p for p in own if getattr(p, "_is_hf_initialized", False)]
        if len(loaded) == len(own) > 0 or all(module is not part for part in self.head.modules()):
            return
        values = [p.clone() for p in loaded]
        if module is self.head:
            self.head.reset_parameters(submodules=False)
            if not self.head.shares_weight:
                deviation = getattr(self.config.text_config, "initializer_range", 0.02)
                fill_matrix(self.head, lambda matrix: nn.init.normal_(matrix, std=deviation))
        elif reset := getattr(module, "reset_parameters", None):
            reset()
        for parameter, value in zip(loaded, values, strict=True):
            parameter.copy_(value)

    def _supports_default_dynamic_cache(self) -> bool:  # by the class's name
        of_class: Any = GenerationMixin._supports_default_dynamic_cache
        return bool(of_class.__func__(type(self.model)))

    def get_output_embeddings(self) -> nn.Module:
        """Return the head to accelerate, PEFT and transformers, and a refusal to trainers.

        A trainer that multiplies with its matrix would train a softmax.
        """
        return seen_by_caller(self._modules["head"], self.config.head)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Refuse another output layer."""
        raise UserError("set_output_embeddings: the output layer is model.head; use replace_head")

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None,
        *args: Any, **kwargs: Any,
    ) -> nn.Module:  # fmt: skip
        """Return the embedding if its size stays; refuse another size."""
        wanted = self.head.num_classes if new_num_tokens is None else new_num_tokens
        wanted += -wanted % (pad_to_multiple_of or 1)
        if wanted != self.head.num_classes:
            raise UserError(f"resize_token_embeddings({wanted}): the head keeps its classes; "
                            "resize the original model before replace_head")  # fmt: skip
        return self.get_input_embeddings()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and (call := fused_call(value)):
            self.__dict__["_fused"] = call
        else:
            super().__setattr__(name, value)

    @classmethod
    def from_pretrained(cls, folder: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a model; compare it, in float32, with the certificate of its folder, if any."""
        found = super().from_pretrained(folder, *args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found  # with output_loading_info
        compare_folder(folder, model)
        return found

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, state_dict: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Save it with the name of the head's function: `Trainer` resumes with no other one."""
        state = dict(state_dict or self.state_dict())
        if isinstance(self.head, Head):
            state[FUNCTION] = self.head.get_extra_state()
        super().save_pretrained(save_directory, is_main_process, state, **kwargs)

    @WithSignature
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, cache: Any = None,
        inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Return the loss of labels, which are shifted here, and logits; see the class.

        Args:
            kwargs: what the trunk takes, `ignore_index` (−100), and `num_items_in_batch`, the
                number of labels in all accumulated batches, which divides the sum of the losses.
        """
        # no further parameter may have "label" in its name: Trainer would wait for it
        names = "shift_labels", "num_items_in_batch", "fused_lm_head", "return_dict", "ignore_index"
        shift_labels, items, fused, return_dict, ignored = (kwargs.pop(n, None) for n in names)
        kwargs |= {"position_ids": position_ids, "cache": cache, "inputs_embeds": inputs_embeds}
        out, routing = self._run_trunk(input_ids, attention_mask, kwargs)
        features, loss, logits = out.last_hidden_state, None, None
        if self.config.feature_scale != 1:
            features = features * self.config.feature_scale
        target, predicting = shift_labels, features
        if labels is not None and shift_labels is None:
            target, predicting = labels[:, 1:], features[:, :-1]
        if target is not None:
            if ignored is not None:
                target = target.masked_fill(target == ignored, IGNORED)
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
        kind = CausalLMOutputWithPast if routing is None else MoeCausalLMOutputWithPast
        names = (*CACHES, "hidden_states", "attentions", "router_logits")
        others = {n: out.get(n) for n in names if n in kind.__dataclass_fields__}
        others |= {} if routing is None else {"aux_loss": routing}
        output = kind(loss=loss, logits=logits, **others)
        named = self.config.return_dict if return_dict is None else return_dict
        return output if named else output.to_tuple()

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
        if not given.get("output_router_logits") or out.get("router_logits") is None:
            return out, None
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        experts = getattr(text, "num_experts", None) or text.num_local_experts
        chosen = text.num_experts_per_tok
        return out, load_balancing_loss_func(out.router_logits, experts, chosen, attention_mask)

    def _with_routing(self, loss: Tensor, routing: Tensor | None) -> Tensor:
        """Add the loss of the router, as the trunk's own model does."""
        factor = next((f for n in ROUTER_FACTORS if (f := getattr(self.config, n, None))), 0.0)
        return loss if routing is None else loss + factor * routing.to(loss.device)


# TRL's trainers replace `model.forward` by one that multiplies features with the matrix of the
# output layer, as if it were a softmax. The model recognises it, keeps its settings, and answers
# itself.


class FusedCall(NamedTuple):
    """Hold what a trainer of TRL asks for of each token, under softmax(scores / temperature)."""

    temperature: float
    outputs: tuple[str, ...]


def fused_call(value: Any) -> FusedCall | None:
    """Return the settings of TRL's replacement of `forward`; None for any other function."""
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    named = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "fused_lm_head" not in named:
        return None
    held = inspect.getclosurevars(function).nonlocals
    if missing := {"temperature", "outputs", "cast_lm_head_to_fp32"} - held.keys():
        raise UserError("this version of TRL is unknown: its forward has no "
                        f"{', '.join(sorted(missing))}; install trl 1.16")  # fmt: skip
    if held["cast_lm_head_to_fp32"]:
        raise UserError("cast_lm_head_to_fp32: log-probabilities are float32 already; leave it out")
    return FusedCall(held["temperature"], tuple(held["outputs"]))


def nll_per_item(head: Any, batch: Batch) -> Tensor:
    """Return the summed loss of a batch, divided by the number of its labels or of its items."""
    features, target, items = batch
    mask = target != IGNORED
    total: Tensor = head(features[mask], target[mask], reduction="sum").loss
    return total / (mask.sum() if items is None else torch.as_tensor(items, device=total.device))


def answer(call: FusedCall, head: Any, batch: Batch) -> Any:
    """Return TRL's FusedCausalLMOutput, from the head's own probabilities of each target."""
    from trl.trainer.utils import FusedCausalLMOutput

    features, target, items = batch
    mask = target != IGNORED
    flat, flat_target = features[mask], target[mask]
    if call.temperature == 1 and "is_top1" in call.outputs and METRICS.issuperset(call.outputs):
        out = head(flat, flat_target, entropy="entropy" in call.outputs, accuracy=True)
        found = {"log_probs": -out.loss, "entropy": out.entropy, "is_top1": out.correct > 0}
    else:
        found = token_statistics(head, flat, flat_target, *call)
    names = {"log_probs", *call.outputs}
    full = {n: found[n].new_zeros(mask.shape).masked_scatter(mask, found[n]) for n in names}
    count = mask.sum().clamp(min=1) if items is None else items
    return FusedCausalLMOutput(loss=-full["log_probs"].sum() / count, label_mask=mask, **full)
