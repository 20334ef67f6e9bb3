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
    kind, own = TRUNKS.get(name, (name, {}))
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


def numbers(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def unmoved(before, model, prefix="head."):
    return [
        n for n, p in model.named_parameters() if n.startswith(prefix) and torch.equal(before[n], p)
    ]


GREEDY = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
