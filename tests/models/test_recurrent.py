"""Every head on both recurrent trunks: what is learnt, the loss, and a beam search."""

import pytest
import torch

from highrank_plugins.heads import tokens
from tests.models.small import assert_scores_of_one_pass, build

# matrices without a row for each class
SEPARATE = [f"awd_lstm_lm_{token}" for token in ("low_rank", "tiers", "codebook")]


@pytest.fixture(
    params=[f"{trunk}_{token}" for trunk in ("lstm", "awd_lstm_lm") for token in sorted(tokens())]
)
def built(request, mt_data, lm_data):
    arch, words = request.param, ["--label-smoothing", "0.1"]
    words += ["--head-plif-knots", "50"] if "plif" in arch else []
    words += ["--head-low-rank-rank", "8"] if "low_rank" in arch else []
    words += ["--separate-embeddings"] if arch in SEPARATE else []
    return build(lm_data if "_lm_" in arch else mt_data, arch, *words)


def test_every_parameter_learns(built):
    torch.manual_seed(0)
    built.criterion(built.model.train(), built.batch())[0].backward()
    for name, parameter in built.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # initial biases of 0 and gates make no exception
        assert parameter.grad.abs().sum() > 0, name


def test_the_loss_is_the_negative_log_probability_of_the_target(built):
    sample, pad = built.batch(), built.task.target_dictionary.pad()
    model, target, inputs = built.model.eval(), sample["target"], sample["net_input"]
    log_probs, _ = model(**inputs)
    want = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(target == pad, 0)
    each = model(**inputs, target=target, ignore_index=pad, reduction="none", accuracy=True)
    torch.testing.assert_close(each.loss, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(each.correct, (log_probs.argmax(-1) == target) & (target != pad))
    total = model(**inputs, target=target, ignore_index=pad)
    for got in (total.loss, total.nll):
        torch.testing.assert_close(got, want.sum(), rtol=1e-5, atol=1e-4)
    normalised = model.get_normalized_probs((log_probs, None), log_probs=True)
    torch.testing.assert_close(normalised, log_probs)


def test_a_beam_search_reads_one_word_at_a_time(built):
    if hasattr(built.model, "encoder"):
        assert_scores_of_one_pass(built, built.batch())
        return
    prefix, read = torch.randint(4, 20, (3, 3)), []
    trunk = built.model.decoder.trunk
    hook = trunk.register_forward_pre_hook(lambda _, args: read.append(args[0].size(0)))
    built.model.register_forward_pre_hook(lambda *_: hook.remove())  # which is the whole pass
    found = assert_scores_of_one_pass(built, {"net_input": {"src_tokens": prefix}})
    assert set(read) == {1}
    for start, hypotheses in zip(prefix, found, strict=True):
        assert all(torch.equal(h["tokens"][:3], start) for h in hypotheses)
