"""PEFT, quantisers, lm-eval and torch.compile around the model (rows 9, 11, 19, 21)."""

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

from highrank_plugins.huggingface import HighrankForCausalLM
from tests.huggingface.tiny import HEADS, ids, log_probs, make, numbers, unmoved

MIXTURES = pytest.mark.parametrize("head", ["mixtape", "mos"])


# -- PEFT ----------------------------------------------------------------------------------------


def adapted(model, **options):
    peft = pytest.importorskip("peft", reason="needs PEFT")
    given = {"target_modules": ["q_proj", "v_proj"], **options}
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, **given))


def take_steps(model, count=2):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(count):
        model(ids(), labels=ids()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def reloaded(model, base, folder):
    from peft import PeftModel

    model.save_pretrained(folder)
    return PeftModel.from_pretrained(base, folder).eval()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("head", ["softmax", "mixtape", "mos"])
def test_row_9_adapters_of_the_trunk_move_alone(name, head, tmp_path):
    layers = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}[name]
    model = adapted(make(name, head), target_modules=layers)
    before = numbers(model)
    take_steps(model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == set(before) - set(unmoved(before, model, "")) and "lora" in min(trained)
    assert not any(".head." in n for n in trained)
    again = reloaded(model, make(name, head), tmp_path)
    assert torch.equal(again(ids()).logits, model.eval()(ids()).logits)


def assert_copies_move(before, model):
    still = unmoved(before, model, "")
    assert not [n for n in still if "modules_to_save" in n]
    assert [n for n in before if "original_module" in n] == [n for n in still if "original" in n]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@MIXTURES
def test_row_9_a_head_trained_whole(head, tied, tmp_path):
    model = adapted(make("llama", head, tied), modules_to_save=["head"])
    before = numbers(model)
    take_steps(model)
    assert_copies_move(before, model)
    again = reloaded(model, make("llama", head, tied), tmp_path)
    wanted = again(ids()).logits
    assert torch.equal(wanted, model.eval()(ids()).logits)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(ids()).logits, wanted, rtol=0, atol=5e-6)
    merged.save_pretrained(tmp_path / "merged")
    loaded = HighrankForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.equal(loaded(ids()).logits, merged(ids()).logits)


@pytest.mark.parametrize("layers", [["latent"], ["q_proj", "gate_hidden"], "all-linear"], ids=str)
def test_row_9_adapters_within_the_head_or_tied_to_it_are_refused(layers):
    model = adapted(make(head="mixtape"), target_modules=layers)
    with pytest.raises(ValueError, match=r"head\.(latent|gate_hidden) is a peft.*modules_to_save"):
        model(ids(), labels=ids())
    spared = adapted(make(head="mixtape"), target_modules="all-linear", exclude_modules=r"head\..*")
    spared(ids(), labels=ids()).loss.backward()
    both = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    with pytest.raises(ValueError, match=r"modules_to_save=\[.head.\] without ensure_weight_tying"):
        adapted(make(tied=True), **both)(input_ids=ids(), labels=ids())


def test_row_9_sft_and_dpo_with_adapters(tmp_path):
    trl = pytest.importorskip("trl", reason="needs TRL")
    from peft import LoraConfig

    from tests.huggingface.training import ONE_STEP, completions, preferences, trainer_of

    lora = LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], modules_to_save=["head"], r=4
    )
    for kind, of, rows in (
        ("SFT", trl.SFTConfig, completions),
        ("DPO", trl.DPOConfig, preferences),
    ):
        given = of(tmp_path, **ONE_STEP | {"max_steps": 2})
        trainer = trainer_of(
            getattr(trl, f"{kind}Trainer"), given, make(), rows(), peft_config=lora
        )
        before = numbers(trainer.model)
        trainer.train()
        assert_copies_move(before, trainer.model)


# -- torch.compile, quantisers, lm-eval -----------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "head"),
    [("llama", h) for h in ("softmax", "mixtape", "mos", "mos_plif")] + [("gpt2", "mos")],
)
def test_row_11_a_compiled_model_has_the_same_gradients(name, head):
    torch._dynamo.reset()
    model = make(name, head).train()
    model(ids(), labels=ids()).loss.backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(ids(), labels=ids(), use_cache=False).loss.backward()
    for wanted, parameter in zip(plain, model.parameters(), strict=True):
        assert float((parameter.grad - wanted).abs().max() / wanted.abs().max()) < 2e-6
    model.eval()
    torch.testing.assert_close(compiled(ids()).logits, model(ids()).logits, rtol=0, atol=1e-6)


class Bare(HighrankForCausalLM):
    def get_output_embeddings(self):
        return None


def torchao_int8():
    pytest.importorskip("torchao", reason="needs torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def bitsandbytes(bits):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(**{f"load_in_{bits}bit": True})


@pytest.mark.parametrize(
    ("quantised", "tolerance"),
    [(torchao_int8, 2e-4), (lambda: bitsandbytes(8), 5e-4), (lambda: bitsandbytes(4), 1e-2)],
    ids=["torchao_int8", "bitsandbytes_8", "bitsandbytes_4"],
)
@MIXTURES
def test_row_19_a_quantised_trunk_spares_the_head(quantised, tolerance, head, tmp_path):
    given, model = quantised(), make(head=head).eval()
    model.save_pretrained(tmp_path)
    small = HighrankForCausalLM.from_pretrained(tmp_path, quantization_config=given)
    assert all(type(p) is torch.nn.Parameter for p in small.head.parameters())
    assert type(small.head.latent) is torch.nn.Linear
    attention = small.model.layers[0].self_attn.q_proj
    assert (
        type(attention) is not torch.nn.Linear or type(attention.weight) is not torch.nn.Parameter
    )
    with torch.no_grad():
        a, b = (float(m(ids(), labels=ids()).loss) for m in (model, small))
    assert abs(a - b) < tolerance


def test_row_19_quantisers_find_the_head():
    from transformers.quantizers.base import get_keys_to_not_convert

    model = make(head="mixtape")
    assert "head" in get_keys_to_not_convert(model)
    assert "head" not in get_keys_to_not_convert(Bare(model.config))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("head", HEADS)
def test_row_21_lm_eval_reads_the_models_probabilities(name, head, tmp_path):
    pytest.importorskip("lm_eval", reason="needs lm-eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from tests.huggingface.training import tokenizer, words

    model, pieces = make(name, head).eval(), tokenizer()
    model.save_pretrained(tmp_path)
    pieces.save_pretrained(tmp_path)
    judge = HFLM(
        pretrained=str(tmp_path), batch_size=2, device="cpu", dtype="float32", max_length=16
    )
    texts = [(words(5, i), " " + words(2 + i % 4, 40 + i)) for i in range(6)]
    requests = [Instance("loglikelihood", {}, text, i) for i, text in enumerate(texts)]
    for (found, _), text in zip(judge.loglikelihood(requests, True), texts, strict=True):
        context, more = (pieces(part, add_special_tokens=False)["input_ids"] for part in text)
        with torch.no_grad():
            log_p = log_probs(model, torch.tensor([context + more]))[0, len(context) - 1 : -1]
        wanted = float(log_p.gather(-1, torch.tensor(more)[:, None]).sum())
        assert found == pytest.approx(wanted, abs=1e-5)
