"""hooks/best_metric.py: a metric that a validation lacks is refused before the first update."""

import pytest
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.metrics_file import METRICS
from tests.compat.conftest import run_training, translation_options
from tests.trainings import last

MAXIMISED = "--maximize-best-checkpoint-metric"
BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 5}']


def train(data, folder, metric, *more):
    words = ["--best-checkpoint-metric", metric, *more]
    return run_training(data, folder, *translation_options(), *words)


@pytest.mark.parametrize(
    ("metric", "more", "problem"),
    [
        ("blue", [], "blue: a validation computes loss, ppl, .* only"),
        ("losss", [], "; did you mean 'loss'"),
        ("bleu", [MAXIMISED], "; add --eval-bleu$"),
        ("accuracy", [MAXIMISED], "accuracy: a validation computes loss"),
        ("bleu", BLEU, "bleu: higher is better; add --maximize-best-checkpoint-metric"),
        ("loss", [MAXIMISED], "would keep the worst: lower loss is better"),
    ],
)
def test_what_cannot_choose_a_checkpoint_is_refused_before_training(
    data, tmp_path, metric, more, problem
):
    with pytest.raises(UserError, match=f"--(maximize-)?best-checkpoint-metric.*{problem}"):
        train(data, tmp_path, metric, *more)
    assert not last(tmp_path).exists()
    assert not (tmp_path / METRICS).exists()


def test_the_first_validation_looks_again(data, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "highrank_metric", "seen", raising=False)
    with pytest.raises(UserError, match="blue: a validation computes loss"):
        train(data, tmp_path, "blue")


def test_looking_changes_no_number(data, tmp_path):
    plain = run_training(data, tmp_path / "a", *translation_options(**{"--dropout": 0.3}))
    looked = run_training(
        data, tmp_path / "b", *translation_options(**{"--dropout": 0.3}),
        "--best-checkpoint-metric", "ppl",
    )  # fmt: skip
    for name, value in plain["model"].items():
        assert value.equal(looked["model"][name])


def test_early_stopping_and_the_best_checkpoint_go_by_bleu(data, tmp_path, monkeypatch):
    """Stop after three scores in a row without progress, and keep the highest."""
    scores = iter([3.0, 9.0, 4.0, 5.0, 6.0, 99.0])

    monkeypatch.setattr(training, "validate", lambda *args: [next(scores)])
    often = ["--validate-interval-updates", 1, "--save-interval-updates", 1, "--patience", 3]
    words = [*translation_options(**{"--max-update": 9}), *often, MAXIMISED, *BLEU]
    state = run_training(data, tmp_path, *words, "--best-checkpoint-metric", "bleu")
    assert state["extra_state"]["val_loss"] == 6.0
    best = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_best.pt"))
    assert best["extra_state"]["val_loss"] == 9.0


def test_the_best_score_of_another_metric_is_forgotten(data, tmp_path):
    train(data, tmp_path, "loss")
    words = [*translation_options(**{"--max-update": 3}), "--best-checkpoint-metric", "ppl"]
    state = run_training(data, tmp_path, *words)
    assert state["extra_state"]["best"] == state["extra_state"]["val_loss"] > 5
