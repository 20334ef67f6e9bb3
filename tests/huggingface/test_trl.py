"""TRL's trainers, each of which would replace the output layer by a matrix (rows 5 to 8)."""

import copy
import zlib

import pytest
import torch

pytest.importorskip("trl", reason="needs TRL")

from torch import nn
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.trainer.utils import add_fused_lm_head

from highrank_plugins.huggingface import HighrankForCausalLM
from tests.huggingface.tiny import HEADS, ids, log_probs, make, numbers, sharpened, unmoved
from tests.huggingface.training import (
    ONE_STEP,
    completions,
    preferences,
    spied,
    texts,
    trainer_of,
    wanted_log_probs,
)

EVERY = pytest.mark.parametrize("head", HEADS)


def sft(model, folder, **more):
    arguments = SFTConfig(folder, **ONE_STEP | more)
    return trainer_of(SFTTrainer, arguments, model, completions(), eval_dataset=completions())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
@EVERY
def test_row_5_sft_trains_the_whole_head(name, head, tmp_path):
    model = make(name, head, tied=name == "gpt2")
    before, start = numbers(model), copy.deepcopy(model)
    trainer, seen = sft(model, tmp_path), []
    compute = trainer.compute_loss

    def spy(model, inputs, *args, **kwargs):
        loss = compute(model, inputs, *args, **kwargs)
        seen.append((float(loss.detach()), dict(inputs)))
        return loss

    trainer.compute_loss = spy
    trainer.train()
    loss, inputs = seen[0]
    with torch.no_grad():
        own = start(**{n: inputs[n] for n in ("input_ids", "attention_mask", "labels")}).loss
    assert loss == pytest.approx(float(own), abs=1e-6) and unmoved(before, model) == []
    log_p, all_log_p, counts = wanted_log_probs(start, inputs)
    logged = trainer.state.log_history[0]
    entropy = -(all_log_p.exp() * all_log_p).sum(-1)[counts].mean()
    assert logged["entropy"] == pytest.approx(float(entropy), abs=1e-3)
    assert logged["mean_token_accuracy"] == pytest.approx(
        float((all_log_p.amax(-1) == log_p)[counts].float().mean()), abs=1e-3
    )


@pytest.mark.parametrize("head", ["mixtape", "mos"])
def test_row_5_sft_with_other_options(head, tmp_path):
    for options in (
        {"gradient_checkpointing": True}, {"loss_type": "dft"},
        {"bf16": True, "eval_strategy": "steps"},
    ):  # fmt: skip
        model = make(head=head)
        before = numbers(model)
        trainer = sft(model, tmp_path, eval_steps=1, **options)
        trainer.train()
        assert unmoved(before, model) == [], options
        trainer.save_model(tmp_path)
        loaded = HighrankForCausalLM.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(t, loaded[n]) for n, t in model.state_dict().items())


class NoHook(HighrankForCausalLM):
    def __setattr__(self, name, value):
        nn.Module.__setattr__(self, name, value)


def test_row_5_a_trainer_that_the_hook_does_not_know_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"would train mos as a plain softmax.*labels="):
        sft(make(kind=NoHook), tmp_path).train()
    layer = make().get_output_embeddings()
    for read in ("weight", "bias", "in_features"):
        with pytest.raises(RuntimeError, match="reads the output layer as a matrix"):
            getattr(layer, read, None)
    with pytest.raises(RuntimeError, match="reads the output layer as a matrix"):
        layer(torch.zeros(1, 32))


PREFERRED = {
    "row_6_dpo": (DPOTrainer, DPOConfig, preferences),
    "row_7_kto": (KTOTrainer, KTOConfig, lambda: texts(completion=(3, 4, 50)).add_column(
        "label", [i % 2 == 0 for i in range(8)])),
}  # fmt: skip


@pytest.mark.parametrize("way", PREFERRED)
@EVERY
def test_preferences_are_of_the_heads_own_probabilities(head, way, tmp_path):
    kind, config, rows = PREFERRED[way]
    model, reference = make(head=head), make(head=head, seed=3)
    before, start = numbers(model), copy.deepcopy(model)
    arguments = config(tmp_path, **ONE_STEP)
    trainer = trainer_of(kind, arguments, model, rows(), ref_model=reference)
    calls = {start: spied(trainer.model), reference: spied(trainer.ref_model)}
    trainer.train()
    sums = []
    for own, seen in calls.items():
        assert seen
        for given, out in seen:
            if "labels" not in given:
                given["labels"] = given["input_ids"].masked_fill(
                    given["completion_mask"] == 0, -100
                )
            wanted = wanted_log_probs(own, given)[0]
            torch.testing.assert_close(out.log_probs.detach(), wanted, rtol=0, atol=2e-6)
            sums.append(wanted.sum(1))
    if kind is DPOTrainer:
        (chosen, rejected), (old_chosen, old_rejected) = (s.chunk(2) for s in sums)
        margin = (chosen - rejected) - (old_chosen - old_rejected)
        loss = float(-nn.functional.logsigmoid(0.1 * margin).mean())
        assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, abs=1e-6)
    assert unmoved(before, model) == []


def rewards(completions, **_):
    return [float(zlib.crc32(text.encode()) % 7) for text in completions]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("head", ["softcap", "mixtape", "mos", "mos_plif"])
def test_row_8_grpo(head, temperature, tmp_path):
    model = sharpened(make(head=head), 2)
    before, start = numbers(model), copy.deepcopy(model)
    arguments = GRPOConfig(
        tmp_path, **ONE_STEP | {"per_device_train_batch_size": 8}, temperature=temperature,
        num_generations=4, max_completion_length=6, beta=0.0, entropy_coef=0.01,
    )  # fmt: skip
    trainer = trainer_of(GRPOTrainer, arguments, model, texts(4), reward_funcs=rewards)
    seen = spied(trainer.model)
    trainer.train()
    given, out = seen[0]
    wanted, log_p, counts = wanted_log_probs(start, given, temperature)
    torch.testing.assert_close(out.log_probs.detach(), wanted, rtol=0, atol=2e-6)
    entropy = -(log_p.exp() * log_p).sum(-1) * counts
    torch.testing.assert_close(out.entropy.detach(), entropy, rtol=0, atol=5e-6)
    assert unmoved(before, model) == []


FIELDS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


@pytest.mark.parametrize(
    "fields", [FIELDS, ("log_probs", "entropy", "is_top1")], ids=["all", "sft"]
)
def test_the_answer_has_every_field_and_the_gradient_of_plain_autograd(fields):
    model = make().double()
    add_fused_lm_head(model, temperature=0.7, outputs=fields)
    assert "forward" not in vars(model)
    labels = ids()
    labels[:, :3] = -100
    out = model(ids(), labels=labels, fused_lm_head=True)
    scores = log_probs(model, ids())[:, :-1] / 0.7
    log_p = scores.log_softmax(-1)
    mask = labels[:, 1:] != -100
    wanted = log_p.gather(-1, labels[:, 1:].clamp(min=0)[..., None]).squeeze(-1) * mask
    entropy = -(log_p.exp() * log_p).sum(-1) * mask
    torch.testing.assert_close(out.log_probs, wanted)
    torch.testing.assert_close(out.entropy, entropy)
    if "mean_logits" in fields:
        torch.testing.assert_close(out.mean_logits, scores.mean(-1) * mask)
        torch.testing.assert_close(out.log_sum_sq_probs, (2 * log_p).logsumexp(-1) * mask)
    assert torch.equal(out.is_top1, (log_p.argmax(-1) == labels[:, 1:]) & mask)
    torch.testing.assert_close(out.loss, -wanted.sum() / mask.sum())
    parameters = list(model.parameters())
    got = torch.autograd.grad(out.log_probs.sum() + out.entropy.sum(), parameters)
    torch.testing.assert_close(got, torch.autograd.grad((wanted + entropy).sum(), parameters))


def test_settings_of_trl_that_cannot_be_served_are_refused():
    with pytest.raises(ValueError, match="cast_lm_head_to_fp32: log-probabilities are float32"):
        add_fused_lm_head(make(), cast_lm_head_to_fp32=True)

    def renamed(self, *args, fused_lm_head=False, **kwargs):
        return self, args, fused_lm_head, kwargs

    with pytest.raises(ValueError, match=r"this version of TRL is unknown.*install trl 1.16"):
        make().forward = renamed
