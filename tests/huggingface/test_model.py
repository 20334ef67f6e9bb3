"""The model alone: files, generation, precision, caches. `row_N` is the contract's row N."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from highrank_plugins.common.user_error import UserError
from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM
from highrank_plugins.reports.model_folder import certify
from tests.huggingface.tiny import (
    CLASSES,
    GREEDY,
    HEADS,
    SIZE,
    TRUNKS,
    ids,
    log_probs,
    make,
    sharpened,
    trunk,
)

EVERY = pytest.mark.parametrize("head", HEADS)
SOME = pytest.mark.parametrize("head", ["softcap", "mixtape", "mos_plif"])
BOTH = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


@BOTH
@pytest.mark.parametrize("name", TRUNKS)
def test_row_1_a_saved_model_is_loaded_bit_by_bit(name, tied, tmp_path, monkeypatch):
    for matrix in ("centred", "unit", *([] if tied else ["codebook"])):
        options = {"components": 3, "vocabulary": matrix}
        monkeypatch.setitem(HEADS, matrix, ("mos", options))
    for head in HEADS:
        model, folder = make(name, head, tied).eval(), tmp_path / head
        model.save_pretrained(folder, max_shard_size="20KB")
        files = list(folder.glob("*.safetensors"))
        keys = [key for file in files for key in safe_open(file, "pt").keys()]  # noqa: SIM118
        loaded, info = HighrankForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert len(files) > 1 and len(keys) == len(set(keys))
        place = (
            "weight" if "weight" in loaded.head._parameters else "parametrizations.weight.original"
        )
        assert (f"head.{place}" in keys) != tied
        state = loaded.state_dict()
        assert all(torch.equal(tensor, state[n]) for n, tensor in model.state_dict().items())
        assert torch.equal(model(ids()).logits, loaded.eval()(ids()).logits)
        stored = loaded.head.get_parameter(place)
        assert (stored is loaded.get_input_embeddings().weight) == tied


def test_row_2_a_fresh_process_loads_the_folder(tmp_path):
    model = make("qwen3", "mixtape").eval()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    again.save_pretrained(tmp_path)  # the folder keeps its line, and gets no copy of our files
    assert sorted(p.name for p in tmp_path.glob("*.py")) == ["modeling_highrank.py"]
    torch.save(ids(), tmp_path / "ids")
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A; f = sys.argv[1]\n"
        "m = A.from_pretrained(f, trust_remote_code=True).eval()\n"
        "torch.save(m(torch.load(f + '/ids')).logits, f + '/out')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=os.environ.copy())
    assert torch.equal(torch.load(tmp_path / "out"), model(ids()).logits)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
@EVERY
def test_row_10_checkpointed_gradients_are_equal_bit_by_bit(name, head):
    model = make(name, head).train()

    def gradients():
        model.zero_grad()
        model(ids(), labels=ids(), use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert all(map(torch.equal, plain, gradients()))
        model.gradient_checkpointing_disable()


@EVERY
@torch.no_grad()
def test_row_12_generation_follows_the_models_distribution(head):
    model, prompt = sharpened(make(head=head).eval(), 3), ids(2, 5)
    by_hand = prompt
    for _ in range(GREEDY["max_new_tokens"]):
        best = log_probs(model, by_hand)[:, -1].argmax(-1, keepdim=True)
        by_hand = torch.cat([by_hand, best], 1)
    greedy = model.generate(prompt, **GREEDY)
    assert torch.equal(greedy, by_hand)
    assert torch.equal(greedy, model.generate(prompt, use_cache=False, **GREEDY))
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), prompt], 1)
    left = model.generate(padded, attention_mask=(padded != 0).long(), **GREEDY)
    assert torch.equal(left[:, 3:], greedy)
    helped = model.generate(prompt[:1], assistant_model=make(head=head, seed=5).eval(), **GREEDY)
    assert torch.equal(helped, greedy[:1])
    beams = model.generate(
        prompt, num_beams=4, length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
        **GREEDY,
    )  # fmt: skip
    own = log_probs(model, beams.sequences)[:, 4:-1].gather(-1, beams.sequences[:, 5:, None])
    torch.testing.assert_close(own.sum((1, 2)), beams.sequences_scores, rtol=0, atol=2e-5)


@SOME
@torch.no_grad()
def test_row_12_a_temperature_tempers_the_mixture(head):
    model, prompt, count = sharpened(make(head=head).eval(), 3), ids(1, 5), 20_000
    torch.manual_seed(0)
    drawn = model.generate(
        prompt, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=1,
        num_return_sequences=count, pad_token_id=0, eos_token_id=None,
    )[:, -1]  # fmt: skip
    wanted = (log_probs(model, prompt)[0, -1] / 0.7).softmax(-1)
    share = torch.bincount(drawn, minlength=CLASSES) / count
    assert float((share - wanted).abs().sum() / 2) < 0.035


def test_row_13_another_size_or_layer_is_refused_and_changes_nothing():
    model = make()
    for size in (CLASSES, None):
        assert model.resize_token_embeddings(size) is model.get_input_embeddings()
    assert model.resize_token_embeddings(CLASSES, pad_to_multiple_of=1) is not None
    for call, message in (
        (lambda: model.resize_token_embeddings(CLASSES + 8), "resize the original model before"),
        (lambda: model.resize_token_embeddings(pad_to_multiple_of=64), r"embeddings\(128\)"),
        (lambda: model.set_output_embeddings(torch.nn.Linear(2, 2)), "use replace_head"),
        (lambda: model(ids(), labels=ids() + 90), r"class 1\d\d is out of range \[0, 97\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert len(model.get_input_embeddings().weight) == model.config.vocab_size == CLASSES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@EVERY
def test_row_14_half_precision(dtype, head, tmp_path):
    model = make(head=head)
    wanted = float(model(ids(), labels=ids()).loss)
    with torch.autocast("cpu", dtype=dtype):
        assert abs(float(model(ids(), labels=ids()).loss) - wanted) < 2e-4
    model.save_pretrained(tmp_path)
    loaded = HighrankForCausalLM.from_pretrained(tmp_path, dtype=dtype).train()
    state = model.state_dict()
    assert all(torch.equal(p, state[n].to(dtype)) for n, p in loaded.state_dict().items())
    loss = loaded(ids(), labels=ids()).loss
    loss.backward()
    assert loss.dtype == torch.float32 and abs(float(loss) - wanted) < 2e-4
    assert all(p.grad.isfinite().all() for p in loaded.parameters())
    loaded.eval().generate(ids(1, 4), **GREEDY)
    fresh = HighrankConfig(trunk(dtype=dtype), *HEADS[head])  # a trunk in half precision
    assert {p.dtype for p in HighrankForCausalLM(fresh).parameters()} == {dtype}


@BOTH
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("head", [*HEADS, "multimax"])
def test_row_18_missing_parameters_get_the_first_values_of_the_head(name, head, tied, tmp_path):
    model, fresh = make(name, head, tied), dict(make(name, head, tied, 9).named_parameters())
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    own = [key for key in state if key.startswith("head.") and "_extra" not in key]
    for lost in [{key} for key in own] + [set(own)]:
        save_file({k: v for k, v in state.items() if k not in lost}, file, {"format": "pt"})
        loaded, info = HighrankForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert set(info["missing_keys"]) == lost
        for key, parameter in loaded.named_parameters():
            if key not in lost:
                assert torch.equal(parameter, state[key]), key
                continue
            assert parameter.isfinite().all(), key
            got, wanted = (
                float(p.detach().square().mean()) ** 0.5 for p in (parameter, fresh[key])
            )
            assert wanted / 2 <= got <= wanted * 2 or parameter.numel() < 20, (key, got, wanted)


@EVERY
@torch.no_grad()
def test_row_23_logits_to_keep(head):
    model = make(head=head).eval()
    full = model(ids()).logits
    for keep, index in ((2, slice(-2, None)), (kept := torch.tensor([0, 4]), kept)):
        found = model(ids(), logits_to_keep=keep).logits
        torch.testing.assert_close(found, full[:, index], rtol=0, atol=5e-7)


@pytest.mark.parametrize("name", TRUNKS)
@torch.no_grad()
def test_row_24_a_cache_has_its_old_and_its_new_name(name):
    model, tokens = make(name).eval(), ids()
    full = model(tokens).logits
    for given in ("cache", "past_key_values"):
        out = model(tokens[:, :6], use_cache=True)
        cache = out.get("cache") if out.get("cache") is not None else out.get("past_key_values")
        step = model(tokens[:, 6:7], use_cache=True, **{given: cache}).logits
        torch.testing.assert_close(step[:, 0], full[:, 6], rtol=0, atol=1e-6)


@EVERY
def test_the_loss_is_the_plain_one_in_float64(head):
    model, labels = make(head=head).double(), ids()
    labels[0, :4] = -100
    wanted = -log_probs(model, ids())[:, :-1]
    kept = labels[:, 1:] != -100
    wanted = wanted[kept].gather(-1, labels[:, 1:][kept][:, None]).sum()
    torch.testing.assert_close(model(ids(), labels=labels).loss, wanted / kept.sum())
    out = model(ids(), labels=labels, num_items_in_batch=torch.tensor(7))
    torch.testing.assert_close(out.loss, wanted / 7)
    assert out.logits is None
    moved = model(ids(), shift_labels=torch.cat([labels[:, 1:], labels[:, :1]], 1))
    assert torch.isfinite(moved.loss)
    evaluated = model.eval()(ids(), labels=labels, return_dict=False)
    torch.testing.assert_close(evaluated[0], wanted / kept.sum())
    assert evaluated[1].shape == (3, 11, CLASSES)
    found = model(ids(), labels=labels.masked_fill(labels == -100, 7), ignore_index=7).loss
    torch.testing.assert_close(
        found, model(ids(), labels=labels.masked_fill(labels == 7, -100)).loss
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": None}, "text_config must be the configuration of a decoder, got none"),
        ({"text_config": {"model_type": "t5"}}, "of a decoder, got T5Config"),
        ({"text_config": "gpt2"}, "of a decoder, got str"),
        ({"hed": "mos"}, "unknown argument 'hed'; did you mean 'head'"),
        ({"components": 3}, "unknown argument 'components'; options of the head go into"),
        ({"head": "mixtapes"}, "did you mean 'mixtape'"),
        ({"head_options": {"component": 3}}, "did you mean 'components'"),
        ({"head_options": {"pointwise": torch.tanh}}, "pointwise: expected a name"),
        ({"head": "mixtape", "head_options": {"frequent": 9999}}, "frequent"),
        (
            {"tie_word_embeddings": True, "head_options": {"embed_dim": SIZE // 2}},
            "leave out embed_dim, or set tie_word",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)
def test_wrong_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        HighrankForCausalLM(HighrankConfig(**{"text_config": trunk(), "head": "mos"} | change))


def test_a_certified_folder_that_computes_something_else_is_refused(tmp_path):
    pytest.importorskip("fairseq", reason="`highrank model certify` needs the whole package")
    make(head="softcap").save_pretrained(tmp_path)
    for said in ("certificate.json: written", "computes what was certified, to "):
        assert said in certify(tmp_path)
    AutoModelForCausalLM.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 0.01
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="another function than the certified one"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_frequent_classes_of_a_tokenizer_must_be_named():
    """`make` chooses them by a list, so that all rows hold for it."""
    few, counts = {"frequent": 20, "gate_dim": 8}, torch.arange(CLASSES)
    with pytest.warns(UserWarning, match="first ids of a tokenizer .* class_counts="):
        HighrankConfig(text_config=trunk(), head="mixtape", head_options=few).build_head()
    config = HighrankConfig(
        text_config=trunk(), head="mixtape", head_options=few | {"class_counts": counts}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = HighrankConfig.from_dict(json.loads(config.to_json_string())).build_head()
    assert head.class_order[:20].tolist() == [*range(CLASSES - 1, CLASSES - 21, -1)]
