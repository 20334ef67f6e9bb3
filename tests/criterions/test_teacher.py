"""`--teacher`: a tiny training run, the formula, and what is no teacher."""

import pytest
import torch
from torch.testing import assert_close

from highrank_plugins.common.user_error import UserError
from tests.fairseq_cli import CommandFailed
from tests.models.small import build
from tests.trainings import train

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
    for missing, shown in ((tmp_path / "missing.pt", "missing.pt"), ("", "an empty path")):
        with pytest.raises(UserError, match=rf"--teacher: no such file: .*{shown}$"):
            words = ["--teacher", f"{teacher}:{missing}"]
            build(lm_data, STUDENT, *words).criterion.check_before_training()


def test_no_teacher_and_no_student_are_refused(lm_data, teacher, tmp_path):
    for path, message in ((tmp_path / "missing.pt", "no such file"), (tmp_path, "a folder")):
        built = build(lm_data, STUDENT, "--teacher", path)  # validation needs none
        with pytest.raises(UserError, match=message):
            built.criterion.check_before_training()
    for arch, path, message in (
        (STUDENT, tmp_path / "missing.pt", "ended with 2"),
        ("awd_lstm_lm_softmax", teacher, "can teach, but not learn"),
    ):
        with pytest.raises(CommandFailed, match=message):
            train(lm_data, tmp_path / arch, arch, 2, "--teacher", path)


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
