"""The loss, gradients and log of stock label_smoothed_cross_entropy; teachers; AR and TAR."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch.testing import assert_close

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses import nll
from highrank_plugins.trunks import activation_penalty, temporal_penalty
from tests.models.small import build
from tests.stream_corpus import CERTAIN
from tests.tasks import built as streams
from tests.trainings import train

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


def test_a_stock_model_is_refused(mt_data):
    built = build(mt_data, "transformer_tiny")
    with pytest.raises(ValueError, match="label_smoothed_cross_entropy"):
        built.criterion(built.model, built.batch())


# -- --teacher: a tiny training run, the formula, and what is no teacher ---------------------------

TEACHER, STUDENT = "transformer_lm_mos", "transformer_lm_softmax"
WORDS = ["--teacher-weight", "0.7", "--teacher-temperature", "2", "--label-smoothing", "0.1"]


@pytest.fixture(scope="module")
def teacher(lm_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    train(lm_data, folder, TEACHER, 2)
    return folder / "checkpoint_last.pt"


def test_a_student_trains(lm_data, teacher, tmp_path):
    done = train(lm_data, tmp_path, STUDENT, 2, "--teacher", teacher, *WORDS)
    assert done.lines("| loss") or "nll_loss" in done.output
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)  # written by this test
    assert state["cfg"]["criterion"]["teacher"] == str(teacher)
    assert not state.get("criterion")  # the teacher's parameters are nobody's here


@pytest.mark.parametrize("divergence", ["forward", "reverse"])
def test_the_loss_is_the_formula(lm_data, teacher, divergence):
    words = ["--teacher", teacher, *WORDS, "--teacher-divergence", divergence, "--dropout", "0"]
    built = build(lm_data, STUDENT, *words)
    model, criterion, batch = built.model.double().train(), built.criterion, built.batch()
    loss, _, log = criterion(model, batch)
    (other,) = criterion.loaded
    assert not list(criterion.parameters())
    assert not other.training
    with torch.no_grad():
        log_q = (other(**batch["net_input"])[0] / 2).log_softmax(-1)
    log_p, target = model(**batch["net_input"])[0], batch["target"]
    warm, kept = (log_p / 2).log_softmax(-1), target != criterion.padding_idx
    pair = (log_q, warm) if divergence == "forward" else (warm, log_q)
    kl = 4 * (pair[0].exp() * (pair[0] - pair[1])).sum(-1)[kept].sum()
    share = 0.1 / (log_p.size(-1) - 1)
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)[kept].sum()
    hard = (0.9 - share) * nll - share * log_p[kept].sum()
    assert_close(loss, 0.3 * hard + 0.7 * kl, rtol=1e-9, atol=0)
    assert_close(log["nll_loss"], nll.detach(), rtol=1e-9, atol=0)

    valid, _, _ = criterion(model.eval(), batch)
    assert_close(valid, hard, rtol=1e-9, atol=0)


def test_several_teachers_count_as_their_mean(lm_data, teacher, tmp_path):
    train(lm_data, tmp_path, STUDENT, 3, "--seed", 5)
    other, losses = tmp_path / "checkpoint_last.pt", []
    for path in (teacher, other, f"{teacher}:{other}"):
        built = build(lm_data, STUDENT, "--teacher", path, *WORDS, "--dropout", "0", "--seed", 1)
        model = built.model.double().train()
        loss, _, _ = built.criterion(model, built.batch())
        loss.backward()
        losses.append(
            torch.cat([loss.detach().view(1), *(p.grad.flatten() for p in model.parameters())])
        )
    assert not torch.equal(losses[0], losses[1])
    assert_close(losses[2], (losses[0] + losses[1]) / 2, rtol=1e-9, atol=1e-12)
    for missing in (tmp_path / "missing.pt", tmp_path, ""):
        words = ["--teacher", f"{teacher}:{missing}"]
        criterion = build(lm_data, STUDENT, *words).criterion  # validation needs none
        with pytest.raises(UserError, match=f"--teacher: no such file: '{missing}'$"):
            criterion.check_before_training()


def changed(teacher, tmp_path, change):
    """Return another file, with `change` of the teacher's state."""
    state = torch.load(teacher, weights_only=False)  # written by this test
    change(state)
    torch.save(state, tmp_path / "changed.pt")
    return tmp_path / "changed.pt"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.clear(), "not a training checkpoint: it lacks"),
        (lambda s: s["model"]["decoder.output_projection.weight"].fill_(torch.nan), "diverged"),
        (lambda s: s["task_state"]["dictionaries"].update(target="no"), "is not the dictionary"),
    ],
)
def test_what_cannot_teach_is_named(change, message, lm_data, teacher, tmp_path):
    built = build(lm_data, STUDENT, "--teacher", changed(teacher, tmp_path, change), *WORDS)
    with pytest.raises(UserError, match=f"--teacher .*changed.pt.*{message}"):
        built.criterion(built.model.train(), built.batch())


def test_a_teacher_of_the_reverse_direction_is_refused(mt_data, tmp_path):
    train(mt_data, tmp_path, "transformer_mos", 2)
    path = tmp_path / "checkpoint_last.pt"
    for languages in (["en", "de"], ["de", "en"]):
        path = changed(path, tmp_path, lambda s, to=languages: s["task_state"].update(languages=to))
        built = build(mt_data, "transformer_softmax_tiny", "--teacher", path, *WORDS)
        if languages == ["en", "de"]:
            built.criterion(built.model.train(), built.batch())
    with pytest.raises(UserError, match="the model translates de to en; exchange the two"):
        built.criterion(built.model.train(), built.batch())


def test_a_teacher_moves_no_random_numbers_and_is_named_if_it_reads_less(lm_data, teacher):
    built = build(lm_data, STUDENT, "--teacher", teacher, *WORDS)
    model, batch, losses = built.model.train(), built.batch(), []
    for _ in range(2):  # it is loaded for the first one
        torch.manual_seed(5)
        losses.append(built.criterion(model, batch)[0].item())
    assert losses[0] == losses[1]
    built.criterion.loaded[0].max_positions = lambda: 2
    with pytest.raises(UserError, match="it takes at most 2 tokens, a batch has"):
        built.criterion(model, batch)
    built = build(lm_data, STUDENT, "--teacher", teacher, *WORDS, "--ignore-prefix-size", 1000)
    loss, _, _ = built.criterion(built.model.train(), batch)  # without targets
    loss.backward()
    assert loss == 0


# -- AR, TAR and the loss of streams; tests/tasks/test_runs shares streams out -------------


def test_penalties_are_computed_in_float32_at_least():
    big = torch.full((2, 1, 1), 300.0, dtype=torch.float16)
    assert activation_penalty(big).item() == 90_000
    assert temporal_penalty(big * torch.tensor([[[1.0]], [[-1.0]]]).half()).item() == 360_000
    assert temporal_penalty(big[:1].double()).dtype == torch.float64
    assert temporal_penalty(big[:1]).item() == 0


def losses(built, batch):
    """Return loss, sample size and log of a batch that begins the streams."""
    batch["net_input"]["state"] = None
    return built.criterion(built.model, batch)


def test_the_training_loss_is_the_nll_plus_weighted_penalties(stream_data):
    built = streams.build(stream_data, *CERTAIN)
    built.model.double()
    batch = built.batches()[0]
    loss, size, log = losses(built, batch)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    features, _, raw = built.model.bptt_features(tokens)
    log_probs = built.model.head(features).transpose(0, 1)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum()
    ar, tar = features.square().mean(), (raw[1:] - raw[:-1]).square().mean()
    assert size == log["ntokens"] == target.numel()
    assert_close(log["nll_loss"], nll.detach(), rtol=1e-9, atol=0)
    assert_close(loss, nll + size * (2 * ar + 1 * tar), rtol=1e-9, atol=0)

    got = torch.autograd.grad(loss, list(built.model.parameters()))
    want = torch.autograd.grad(nll + size * (2 * ar + tar), list(built.model.parameters()))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-12)
    built.model.eval()
    loss, _, log = losses(built, built.batches()[0])
    assert_close(loss.data, log["nll_loss"])
    raw = torch.randn(6, 4, 8)  # AR is of dropped outputs, TAR of raw ones
    dropped = raw * 2 * (torch.rand(raw.shape) < 0.5)
    want = 2 * dropped.square().mean() + (raw[1:] - raw[:-1]).square().mean()
    assert_close(built.criterion.penalty(dropped, raw), want)
