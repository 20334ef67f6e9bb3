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


def test_row_20_a_forgotten_cap_is_another_function():
    own = original("gemma3", final_logit_softcapping=5.0)
    with torch.no_grad():
        own.lm_head.weight.mul_(5)
    wanted = own(ids()).logits.log_softmax(-1)
    raw = replace_head(own, "softmax", start="weight", pointwise="identity").eval()(ids()).logits
    assert torch.equal(raw.argmax(-1), wanted.argmax(-1))
    assert float((wanted.exp() * (wanted - raw.log_softmax(-1))).sum(-1).mean()) > 1
    assert torch.equal(replace_head(own, "softmax").eval()(ids()).logits, own(ids()).logits)


@pytest.mark.parametrize("name", [*PLAIN, *EXTRA])
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"measures on token ids \[B, T\] of real text: batch="),
        ({"batch": ids(), "noise": 0.0}, "noise=0 leaves the components equal for ever"),
        ({"batch": ids(), "noise": 5.0}, r"KL .* > 0.005 nats .*set a smaller noise="),
        ({"batch": ids(), "embed_dim": 16}, "embed_dim 16: the model's own is 32; leave"),
        ({"batch": "a text"}, "measures on token ids"),
        ({"start": "own"}, "start: expected one of lm_head, weight, fresh"),
        ({"noise": -1.0}, "noise: expected a number from 0, got -1.0"),
        ({"noise": float("nan")}, "noise: expected a number from 0, got nan"),
        ({"component": 3}, "did you mean 'components'"),
    ],
    ids=str,
)
def test_wrong_starts_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        replace_head(original(), "mos", **options)


@pytest.mark.parametrize("options", [{"pointwise": "sigsoftmax"}, {"bias": False}], ids=str)
def test_a_softmax_with_another_function_is_refused(options):
    own = original("GPTJConfig")
    with torch.no_grad():
        own.lm_head.bias.normal_()
    with pytest.raises(ValueError, match=r"KL .* > 0.005 nats .*leave pointwise out, or set start"):
        replace_head(own, "softmax", **options)


def test_a_fresh_start_may_have_another_width_and_leaves_the_original_alone():
    own = original(tied=True)
    before = copy.deepcopy(own.state_dict())
    model = replace_head(own, "mos", start="fresh", embed_dim=16, components=2).train()
    model(ids(), labels=ids()).loss.backward()
    assert model.head.weight.shape == (CLASSES, 16) and not model.config.tie_word_embeddings
    assert own.lm_head.weight is own.get_input_embeddings().weight
    assert all(torch.equal(before[n], t) for n, t in own.state_dict().items())


class Linear8(nn.Linear):
    """Stand for the class of a quantiser."""


def with_layer(model, layer):
    model.set_output_embeddings(layer)
    return model


def on_two_devices(model):
    model.hf_device_map = {"model": "cpu", "lm_head": "disk"}
    return model


def bert():
    return transformers.BertLMHeadModel(transformers.BertConfig(**COMMON, is_decoder=True))


def electra():
    config = transformers.ElectraConfig(**COMMON, is_decoder=True, embedding_size=16)
    return transformers.ElectraForCausalLM(config).eval()


def bart():
    small = {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1, "decoder_ffn_dim": 32}
    heads = {"decoder_attention_heads": 4, "encoder_attention_heads": 4}
    config = transformers.BartConfig(vocab_size=CLASSES, encoder_ffn_dim=32, **small, **heads)
    return transformers.BartForCausalLM(config)


NOT_SUPPORTED = "is not supported here; give an original causal language model"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: original().model, {}, NOT_SUPPORTED),
        (lambda: with_layer(original(), Linear8(32, CLASSES)), {}, NOT_SUPPORTED),
        (lambda: on_two_devices(original()), {}, NOT_SUPPORTED),
        (bert, {}, "computes more than W g . b"),
        (electra, {}, "computes more than W g . b"),
        (bart, {}, NOT_SUPPORTED),
        (make, {}, NOT_SUPPORTED),
        (lambda: "gpt2", {}, NOT_SUPPORTED),
        (lambda: original("gemma3"), {"pointwise": "gss"}, "capped at 20.0"),
        (original, {"num_classes": 5}, "num_classes: the model's own; leave it out"),
        (original, {"weight": None}, "weight: the model's own; leave it out"),
    ],
    ids=["trunk", "quantised", "devices", "bert", "electra", "bart", "ours", "name", "capped",
         "classes", "weight"],
)  # fmt: skip
def test_other_models_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        replace_head(model(), "softmax", **options)


def test_a_multimodal_model_is_refused():
    text = original("gemma3").config.to_dict()
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
        "patch_size": 4, "intermediate_size": 16,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    model = transformers.Gemma3ForConditionalGeneration(config)
    with pytest.raises(ValueError, match=NOT_SUPPORTED):
        replace_head(model, "softmax")
    rwkv = {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}
    config = transformers.RwkvConfig(vocab_size=CLASSES, **rwkv)
    with pytest.raises(ValueError, match="RwkvModel is not supported: it takes no cache"):
        replace_head(transformers.AutoModelForCausalLM.from_config(config), "softmax")
