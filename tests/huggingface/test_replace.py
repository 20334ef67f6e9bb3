"""replace_head on living models: the same function, its caps and factors, its refusals."""

import copy
import inspect
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

import transformers
from torch import nn

from highrank_plugins.huggingface import HighrankForCausalLM, replace_head
from tests.huggingface.tiny import (
    CLASSES,
    COMMON,
    EXTRA,
    GREEDY,
    TRUNKS,
    assert_causal,
    ids,
    make,
    numbers,
    original,
)

PLAIN = [
    "LlamaConfig", "MistralConfig", "Qwen2Config", "PhiConfig", "Phi3Config", "GPTNeoXConfig",
    "GPTBigCodeConfig", "StableLmConfig", "OlmoConfig", "Olmo2Config", "Starcoder2Config",
    "SmolLM3Config", "Glm4Config", "Lfm2Config", "NemotronConfig",
]  # fmt: skip


def test_row_20_names_the_number_of_architectures():
    kinds = {*PLAIN, *EXTRA, *(kind for kind, _ in TRUNKS.values())}
    page = Path(__file__).parents[2] / "docs" / "howto" / "huggingface.md"
    assert f"on {len(kinds)} architectures" in page.read_text(encoding="utf-8")


def same_function(own, name):
    """Hold a replaced model against its original, which it shares its trunk with."""
    wanted = own(ids(), labels=ids())
    if own._is_stateful and "cache" not in inspect.signature(own.base_model.forward).parameters:
        with pytest.raises(ValueError, match="Mamba and its hybrids do in"):
            replace_head(own, "softmax")
        return None
    model = replace_head(own, "softmax").eval()
    got = model(ids(), labels=ids())
    assert torch.equal(wanted.logits, got.logits), name
    torch.testing.assert_close(got.loss, wanted.loss, rtol=0, atol=2e-6)
    assert_causal(model)
    try:
        greedy = own.generate(ids(2, 4), **GREEDY)
    except RuntimeError:
        pytest.skip(f"{name} with its router's logits cannot generate in this transformers")
    assert torch.equal(greedy, model.generate(ids(2, 4), **GREEDY))
    return model


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", TRUNKS)
def test_row_20_caps_are_taken_over_and_logits_equal_bit_by_bit(name, tied):
    own = original(name, tied)
    before = numbers(own.base_model)
    embedding = own.get_input_embeddings().weight
    (wanted,) = torch.autograd.grad(own(ids(), labels=ids()).loss, embedding)
    model = same_function(own, name)
    assert all(torch.equal(before[n], p) for n, p in model.model.named_parameters())
    (got,) = torch.autograd.grad(model(ids(), labels=ids()).loss, embedding)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 5e-6
    assert (model.head.weight is model.get_input_embeddings().weight) == tied


@pytest.mark.parametrize("name", [*PLAIN, *EXTRA, "MiniMaxConfig", "RecurrentGemmaConfig"])
def test_every_architecture(name):
    same_function(original(name), name)


# -- a start that keeps the function -----------------------------------------------------------


def kl(own, model):
    with torch.no_grad():
        a, b = (m.eval()(ids(8, 20, 4)).logits.log_softmax(-1) for m in (own, model))
    return float((a.exp() * (a - b)).sum(-1).mean())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("head", ["mixtape", "moc", "mos"])
def test_row_25_the_start_keeps_the_function(head, tied, tmp_path, capsys):
    own = original(tied=tied)
    more = {"frequent": 20} if head == "mixtape" else {}
    given = {"components": 4, **more}
    model = replace_head(own, head, batch=ids(8, 20), **given)
    assert "KL" in capsys.readouterr().out
    assert kl(own, model) < 5e-3 < 0.1 < kl(own, replace_head(own, head, start="weight", **given))
    model.save_pretrained(tmp_path)
    loaded = HighrankForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids()).logits, model.eval()(ids()).logits)
    assert_causal(model)


def test_row_25_the_components_of_a_mos_separate():
    model = replace_head(original(), "mos", batch=ids(8, 20), components=3).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def spread():
        latent = model.head.latent.weight.detach().view(3, 32, 32)
        return float((latent - latent.mean(0)).norm() / latent.norm())

    before = spread()
    for _ in range(30):
        model(ids(8, 20), labels=ids(8, 20)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert spread() > 1.5 * before > 0


def test_a_fresh_start_may_have_another_width_and_leaves_the_original_alone():
    own = original(tied=True)
    before = copy.deepcopy(own.state_dict())
    model = replace_head(own, "mos", start="fresh", embed_dim=16, components=2).train()
    model(ids(), labels=ids()).loss.backward()
    assert model.head.weight.shape == (CLASSES, 16) and not model.config.tie_word_embeddings
    assert own.lm_head.weight is own.get_input_embeddings().weight
    assert all(torch.equal(before[n], t) for n, t in own.state_dict().items())
    model.generation_config.max_new_tokens = 3
    assert own.generation_config.max_new_tokens != 3


class Linear8(nn.Linear):
    """Stand for the class of a quantiser."""


def changed(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def biased():
    own = original("GPTJConfig")
    torch.nn.init.normal_(own.lm_head.bias)
    return own


def decoder_of(name, **more):
    """Return a language model of a class whose layer is not alone, or whose text is not."""
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": CLASSES, **more})
    return transformers.AutoModelForCausalLM.from_config(config)


def bart():
    small = {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1, "decoder_ffn_dim": 32}
    heads = {"decoder_attention_heads": 4, "encoder_attention_heads": 4}
    return decoder_of("Bart", encoder_ffn_dim=32, **small, **heads)


def multimodal():
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
        "patch_size": 4, "intermediate_size": 16,
    }  # fmt: skip
    text = original("gemma3").config.to_dict()
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    return transformers.Gemma3ForConditionalGeneration(config)


def rwkv():
    return decoder_of("Rwkv", hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)


NOT_SUPPORTED = "is not supported here; give an original causal language model"
BERT = {**COMMON, "is_decoder": True}
MORE = "computes more than W g . b"
FUTURE = "BertGenerationEncoder: its features depend on later"
KL, LEAVE = r"KL .* > 0.005 nats .*", "leave pointwise out, or set start"
BATCH = {"batch": ids()}
# of a model, options of replace_head with another layer than a softmax, or with one
REFUSED = [
    *((original, {"head": "mos", **options}, message) for options, message in (
        ({}, r"measures on token ids \[B, T\] of real text: batch="),
        (BATCH | {"noise": 0.0}, "noise=0 leaves the components equal for ever"),
        (BATCH | {"noise": 5.0}, f"{KL}set a smaller noise="),
        (BATCH | {"context_scale": 4.0}, "context_scale: start='lm_head' takes it from batch"),
        (BATCH | {"embed_dim": 16}, "embed_dim 16: the model's own is 32; leave"),
        ({"batch": "a text"}, "measures on token ids"),
        ({"start": "own"}, "start: expected one of lm_head, weight, fresh"),
        (BATCH | {"noise": float("nan")}, "KL nan"),
        ({"component": 3}, "did you mean 'components'"),
    )),
    (biased, {"pointwise": "sigsoftmax"}, f"{KL}{LEAVE}"),
    (biased, {"bias": False}, f"{KL}{LEAVE}"),
    (lambda: original().model, {}, NOT_SUPPORTED),
    (lambda: changed(original(), lm_head=Linear8(32, CLASSES)), {}, NOT_SUPPORTED),
    (lambda: changed(original(), hf_device_map={"model": "cpu", "lm_head": "disk"}), {},
     NOT_SUPPORTED),
    (lambda: decoder_of("Bert", **BERT), {}, MORE),
    (lambda: decoder_of("Electra", **BERT, embedding_size=16).eval(), {}, MORE),
    (lambda: decoder_of("BertGeneration", **COMMON).eval(), {}, FUTURE),
    (bart, {}, NOT_SUPPORTED),
    (multimodal, {}, NOT_SUPPORTED),
    (rwkv, {}, "RwkvModel is not supported: it takes no cache"),
    (lambda: original("OpenAIGPTConfig"), {}, "is not supported: it takes no cache"),
    (lambda: original("XLMConfig"), {}, "is not supported: it takes no cache"),
    (make, {}, NOT_SUPPORTED),
    (lambda: "gpt2", {}, NOT_SUPPORTED),
    (lambda: original("gemma3"), {"pointwise": "gss"}, "capped at 20.0"),
    (original, {"num_classes": 5}, "multiple values for keyword argument 'num_classes'"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_other_models_and_starts_are_refused(model, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace_head(model(), **{"head": "softmax", **options})
