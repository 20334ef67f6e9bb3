"""Tiny random models: trunks of Hugging Face and heads of ours."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM  # noqa: E402

CLASSES, SIZE = 97, 32
COMMON = {
    "vocab_size": CLASSES, "hidden_size": SIZE, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {
    "n_embd": SIZE, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
TRUNKS = {
    "llama": ("LlamaConfig", {}),
    "gpt2": ("GPT2Config", GPT2),
    "gemma2": ("Gemma2Config", {"head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "final_logit_softcapping": 20.0}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
}
EXTRA = {
    "MptConfig": {"d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2},
    "BloomConfig": {"n_layer": 2, "n_head": 4},
    "FalconConfig": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "OPTConfig": {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "GPTJConfig": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "CodeGenConfig": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "GPTNeoConfig": {
        "attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4,
    },
    "CohereConfig": {"logit_scale": 0.0625},
    "Cohere2Config": {"logit_scale": 0.25, "layer_types": ["full_attention"] * 2},
    "GraniteConfig": {
        "logits_scaling": 8.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
    "MambaConfig": {"state_size": 8},
    "Mamba2Config": {
        "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2,
    },
    "MixtralConfig": {"num_local_experts": 4, "output_router_logits": True},
    "Qwen3MoeConfig": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8,
        "output_router_logits": True,
    },
    "DeepseekV3Config": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
        "topk_group": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
    },
    "GemmaConfig": {"head_dim": 8},
    "FalconH1Config": {
        "lm_head_multiplier": 0.5, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
        "mamba_d_state": 8, "mamba_n_groups": 1,
    },
    "XGLMConfig": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
}  # fmt: skip
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
# beyond what is supported whole
MORE = {
    "JetMoeConfig": {"kv_channels": 8, **MOE},
    "MiniMaxConfig": {**MOE, "head_dim": 8},
    "RecurrentGemmaConfig": {
        "lru_width": 32,
        "attention_window_size": 16,
        "num_hidden_layers": 3,
        "logits_soft_cap": 5.0,
    },
    "OpenAIGPTConfig": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "XLMConfig": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "causal": True},
}
HEADS = {
    "softmax": ("softmax", {}),
    "softcap": ("softmax", {"pointwise": "softcap", "cap": 5.0}),
    "mixtape": (
        "mixtape",
        {"components": 4, "frequent_classes": [*range(90, 70, -1)], "gate_dim": 8},
    ),
    "moc": ("moc", {"components": 3}),
    "mos": ("mos", {"components": 3}),
    "mos_plif": ("mos_plif", {"components": 3, "knots": 100}),
}


def trunk(name="llama", tied=False, **more):
    kind, own = TRUNKS.get(name, (name, (EXTRA | MORE).get(name, {})))
    return getattr(transformers, kind)(**{**COMMON, **own, "tie_word_embeddings": tied, **more})


def make(name="llama", head="mos", tied=False, seed=0, kind=HighrankForCausalLM):
    torch.manual_seed(seed)
    layer, options = HEADS.get(head, (head, {}))
    return kind(HighrankConfig(text_config=trunk(name, tied), head=layer, head_options=options))


def original(name="llama", tied=False, seed=0, **more):
    """Return a model of transformers, with logits larger than at the start."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(trunk(name, tied, **more)).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


def ids(rows=3, length=11, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, CLASSES, (rows, length), generator=generator)


def log_probs(model, tokens, **options):
    """Return the head's log-probabilities of the trunk's features."""
    return model.head.log_probs(model.model(tokens, **options).last_hidden_state)


def assert_causal(model):
    """Assert that the logits of a position do not depend on later tokens."""
    other = ids()
    other[:, -1] = 5
    with torch.no_grad():
        assert torch.equal(model(ids()).logits[:, :-1], model(other).logits[:, :-1])


def sharpened(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def numbers(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def unmoved(before, model, prefix="head."):
    return [
        n for n, p in model.named_parameters() if n.startswith(prefix) and torch.equal(before[n], p)
    ]


GREEDY = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
