"""The criterion gives the loss, the gradients and the log of stock label_smoothed_cross_entropy."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from torch.testing import assert_close

from highrank_plugins.heads import tokens
from highrank_plugins.losses import nll
from tests.models.small import build

SETTINGS = {
    "plain": [],
    "smoothed": ["--label-smoothing", "0.1"],
    "prefix": ["--label-smoothing", "0.1", "--ignore-prefix-size", "2", "--report-accuracy"],
    "sentences": ["--sentence-avg", "--report-accuracy"],
}


def stock_twin(criterion):
    """Return stock's criterion with the same settings."""
    names = "task", "sentence_avg", "eps", "ignore_prefix_size", "report_accuracy"
    return LabelSmoothedCrossEntropyCriterion(*(getattr(criterion, name) for name in names))


def results(built, criterion, batch, **options):
    loss, size, log = criterion(built.model, batch, **options)
    return loss.detach(), size, log, gradients(built.model, loss.sum())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def check_gradients(got, want, **tolerance):
    assert got.keys() == want.keys()
    for name in want:
        assert_close(got[name], want[name], msg=lambda m, name=name: f"{name}: {m}", **tolerance)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_gives_stocks_numbers(setting, mt_data, monkeypatch):
    built = build(mt_data, "transformer_mixtape_tiny", *SETTINGS[setting])
    built.model.eval()
    batch = built.batch()
    counts, rows = [], nll.kept_rows
    monkeypatch.setattr(nll, "kept_rows", lambda p: counts.append(p.kept_tokens) or rows(p))
    loss, size, log, got = results(built, built.criterion, batch)
    assert counts == [batch["ntokens"]]  # without which a GPU computes padding, too
    want_loss, want_size, want_log, want = results(built, stock_twin(built.criterion), batch)
    assert size == want_size
    assert_close(loss, want_loss)
    assert log.keys() == want_log.keys()
    for name in log:
        assert_close(torch.as_tensor(log[name]), torch.as_tensor(want_log[name]))
    check_gradients(got, want, rtol=2e-4, atol=2e-5)
    each, _, _, unreduced = results(built, built.criterion, batch, reduce=False)
    assert each.shape == batch["target"].shape
    assert_close(each.sum(), loss)
    check_gradients(unreduced, got, rtol=1e-4, atol=1e-5)
    loss, _, _ = built.criterion(built.model, batch)
    loss *= 0  # what fairseq does with a dummy batch
    assert all(not grad.any() for grad in gradients(built.model, loss).values())


@pytest.mark.parametrize("token", sorted(tokens()))
def test_every_head_equals_stocks_formula_in_double_precision(token, lm_data):
    more = ["--head-low-rank-rank", "8"] if "low_rank" in token else []
    built = build(lm_data, f"transformer_lm_{token}", "--label-smoothing", "0.2", *more)
    model, batch = built.model.double().eval(), built.batch()
    loss, _, log, got = results(built, built.criterion, batch)

    log_probs, target = model(**batch["net_input"])[0], batch["target"]
    want_loss, want_nll = label_smoothed_nll_loss(
        log_probs.flatten(0, 1), target.flatten(), 0.2, ignore_index=built.criterion.padding_idx
    )
    assert_close(loss, want_loss, rtol=1e-9, atol=0)
    assert_close(log["nll_loss"], want_nll, rtol=1e-9, atol=0)
    check_gradients(got, gradients(model, want_loss), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", ["reference", "chunked"])
def test_the_implementation_and_its_memory_are_options(level, mt_data, monkeypatch):
    words = ["--head-loss", level, "--head-loss-memory", "3"]
    built = build(mt_data, "transformer_mos_tiny", *words)
    seen = []
    head_nll = type(built.model.head).nll
    monkeypatch.setattr(
        type(built.model.head), "nll", lambda *a, **k: seen.append(k) or head_nll(*a, **k)
    )
    built.criterion(built.model, built.batch())
    first, *_ = seen  # a method that is replaced is checked by further calls
    assert (first["impl"], first["memory"]) == (level, 3 * 2**20)


def test_a_stock_model_is_refused(mt_data):
    built = build(mt_data, "transformer_tiny")
    with pytest.raises(ValueError, match="label_smoothed_cross_entropy"):
        built.criterion(built.model, built.batch())
