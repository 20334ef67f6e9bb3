"""Faults that nobody would see: each is right here, or refused in one line."""

import copy
import inspect

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

import transformers
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM, replace_head
from highrank_plugins.huggingface.model import check_causal
from tests.huggingface.tiny import CLASSES, COMMON, assert_causal, ids, original, trunk
from tests.huggingface.training import BASE


def built(text, head="softmax", **more):
    return HighrankForCausalLM(HighrankConfig(text_config=text, head=head, **more)).eval()


def saved(model, folder, **changes):
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, **changes).eval()


def of_newest():
    if "cache" not in inspect.signature(transformers.MambaModel.forward).parameters:
        pytest.skip("models with a state need a newer transformers")


# -- the trunk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BertConfig", "RobertaConfig", "ModernBertConfig", "EsmConfig"])
def test_a_trunk_that_sees_the_future_is_refused(kind):
    text = getattr(transformers, kind)(**COMMON, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"its features depend on later tokens|takes no cache"):
        built(text)
    if kind != "BertConfig":
        return
    text.is_decoder = True
    model = built(text)
    state = torch.get_rng_state()
    check_causal(model.model, model.head.weight)
    assert torch.equal(state, torch.get_rng_state())
    assert_causal(model)


def test_buffers_that_a_trunk_computes_for_its_parts_are_loaded(tmp_path):
    of_newest()
    model = built(trunk("FalconH1Config"))
    for buffer in (layer.mamba.mup_vector for layer in saved(model, tmp_path).model.layers):
        assert torch.equal(buffer, model.model.layers[0].mamba.mup_vector)
    assert torch.equal(saved(model, tmp_path)(ids()).logits, model(ids()).logits)


# -- the configuration ---------------------------------------------------------------------------


def test_names_of_the_trunks_configuration_reach_the_trunk(tmp_path):
    text = trunk()
    model = built(text, vocab_size=50, attention_dropout=0.5)
    assert model.head.num_classes == len(model.get_input_embeddings().weight) == 50
    assert model.model.config.attention_dropout == 0.5
    assert text.vocab_size == CLASSES and text.attention_dropout == 0
    model = built(text, use_cache=False)
    assert model(ids()).get("past_key_values") is model(ids()).get("cache") is None
    model = saved(model, tmp_path, num_hidden_layers=1, attention_dropout=0.25)
    assert len(model.model.layers) == model.config.num_hidden_layers == 1
    assert model.model.layers[0].self_attn.attention_dropout == 0.25
    model.config.output_hidden_states = True
    assert len(model(ids()).hidden_states) == 2
    model.config.return_dict = False
    assert isinstance(model(ids()), tuple)


@pytest.mark.parametrize("name", ["MixtralConfig", "JetMoeConfig"])
def test_the_loss_of_a_router_may_be_switched_on_later(name, tmp_path):
    own = original(name, output_router_logits=False)
    model = replace_head(copy.deepcopy(own), "softmax")
    before = model(ids(), labels=ids()).loss
    own.config.output_router_logits = model.config.output_router_logits = True
    wanted, got = own(ids(), labels=ids()), model(ids(), labels=ids())
    torch.testing.assert_close(got.loss, wanted.loss)
    if wanted.aux_loss is None:
        pytest.skip(f"{name} has no router's loss in this transformers")
    torch.testing.assert_close(got.aux_loss, wanted.aux_loss)
    assert abs(float(got.loss - before)) > 1e-4
    assert all(map(torch.equal, got.router_logits, wanted.router_logits))
    assert len(own(ids(), labels=ids(), return_dict=False)) == len(got.to_tuple())
    model.config.output_router_logits = False
    loaded = saved(model, tmp_path, output_router_logits=True)
    torch.testing.assert_close(loaded(ids(), labels=ids()).loss, wanted.loss)


def test_caps_and_factors_are_taken_over(tmp_path):
    cohere = trunk("CohereConfig", logit_scale=0.25)
    assert HighrankConfig(text_config=cohere).feature_scale == 0.25
    assert HighrankConfig(text_config=cohere, feature_scale=1.0).feature_scale == 1
    gemma = trunk("gemma2", final_logit_softcapping=7.0)
    for head in ("softmax", "softcap", "mos"):
        assert built(gemma, head).head.pointwise.cap == 7
    assert built(gemma, head_options={"cap": 9.0}).head.pointwise.cap == 9
    assert built(gemma, "sigsoftmax").config.head_options == {"bias": False}
    plain = built(gemma, head_options={"pointwise": "identity"})
    assert saved(plain, tmp_path).config.head_options["pointwise"] == "identity"
    assert saved(built(cohere, feature_scale=1.0), tmp_path).config.feature_scale == 1
    own = original("gemma3")
    for head, given in (
        ("softcap", {"cap": 50.0}),
        ("softmax", {"pointwise": "softcap", "cap": 50.0}),
    ):
        with pytest.raises(ValueError, match=r"capped at 20.0; leave pointwise and cap out"):
            replace_head(own, head, **given)
        assert replace_head(own, head, start="fresh", **given).head.pointwise.cap == 50
        assert replace_head(own, head, cap=20.0).head.pointwise.cap == 20


# -- the start -----------------------------------------------------------------------------------


def large(own, dead=8):
    """Scale the logits, and give the first ids, special tokens, no embedding."""
    with torch.no_grad():
        own.get_output_embeddings().weight.mul_(5)
        own.get_input_embeddings().weight[:dead] = 0
    return own


def test_the_start_is_checked_beyond_special_tokens():
    own = large(original())
    with pytest.raises(ValueError, match=r"KL .* > 0.005 nats"):
        replace_head(own, "softcap", cap=7.0)


def test_a_bad_batch_is_refused_and_leaves_the_modes_alone():
    own = original().train()
    own.model.layers[0].eval()
    modes = [module.training for module in own.modules()]
    other = ids().bool(), ids().to(torch.int8)
    for batch in (ids() + CLASSES, ids() - CLASSES, ids()[:0], ids()[:, :0], *other):
        with pytest.raises(ValueError, match="token ids"):
            replace_head(own, "mos", batch=batch)
    with pytest.raises(ValueError, match="KL"):
        replace_head(own, "mos", batch=ids(), most_kl=0.0)
    assert modes == [module.training for module in own.modules()]


# -- calls ---------------------------------------------------------------------------------------


def test_trainer_keeps_the_columns_that_the_trunk_takes(tmp_path):
    gpt, llama = original("gpt2"), original()
    for own, takes in ((gpt, True), (llama, False)):
        model = copy.deepcopy(replace_head(own, "softmax"))
        names = inspect.signature(model.forward).parameters
        assert ("token_type_ids" in names) == takes and "labels" in names
        trainer = Trainer(model, TrainingArguments(tmp_path, **BASE))
        trainer._set_signature_columns_if_needed()
        assert ("token_type_ids" in trainer._signature_columns) == takes
    kinds = {"token_type_ids": ids() % 5, "labels": ids()}
    wanted = gpt(ids(), **kinds).loss
    torch.testing.assert_close(replace_head(gpt, "softmax")(ids(), **kinds).loss, wanted)


def test_a_saved_model_is_resumed_and_loaded_with_no_other_function(tmp_path):
    own = original()
    one, same, other = (
        replace_head(copy.deepcopy(own), "mos", batch=batch, components=2, noise=0.01)
        for batch in (ids(), ids(), ids(1, 2, seed=5))
    )
    one.save_pretrained(tmp_path)
    arguments = TrainingArguments(tmp_path, **BASE)
    Trainer(same, arguments)._load_from_checkpoint(tmp_path)
    assert torch.equal(same(ids()).logits, one(ids()).logits)
    assert other.head.context_scale != one.head.context_scale
    with pytest.raises(ValueError, match=r"of another function: context_scale"):
        Trainer(other, arguments)._load_from_checkpoint(tmp_path)
    scaled = {**one.config.head_options, "context_scale": 9.0}
    for changes in ({"head_options": scaled}, {"head": "moc"}, {"feature_scale": 2.0}):
        message = f"{next(iter(changes))}: the saved model has another value"
        with pytest.raises(ValueError, match=message):
            AutoModelForCausalLM.from_pretrained(tmp_path, **changes)
