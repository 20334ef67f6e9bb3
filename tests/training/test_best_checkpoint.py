"""The best of several training runs, and what is no checkpoint."""

import pytest
import torch

from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.training.checkpoints import best_checkpoint, last_checkpoints


def write(folder, best, metric="loss", maximise=False, words=None, **blocks):
    folder.mkdir()
    names = "best_checkpoint_metric", "maximize_best_checkpoint_metric"
    cfg = {"checkpoint": dict(zip(names, (metric, maximise), strict=True))}
    state = {"extra_state": {"best": best}, "model": {}, "cfg": cfg | blocks}
    state["task_state"] = {"dictionaries": {"target": words}} if words else {}
    torch.save(state, folder / "checkpoint_best.pt")
    return folder


def test_the_lowest_loss_is_the_best(tmp_path):
    trained, finetuned = write(tmp_path / "train", 6.1), write(tmp_path / "finetune", 6.2)
    assert best_checkpoint([trained, finetuned]).parent == trained
    better = write(tmp_path / "again", 6.05)
    assert best_checkpoint([trained, finetuned, better]).parent == better


def test_the_highest_bleu_is_the_best(tmp_path):
    runs = [write(tmp_path / name, best, "bleu", True) for name, best in (("a", 4.0), ("b", 9.0))]
    assert best_checkpoint(runs).parent == runs[1]


SMOOTHED = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ({}, {"metric": "bleu", "maximise": True}, "b/checkpoint_best.pt by bleu: these scores "),
        ({}, {"metric": "nll_loss"}, "a/checkpoint_best.pt was validated by loss, .* by nll_loss"),
        ({"words": "f00"}, {"words": "ba5"}, "f00.*ba5.*of one dictionary"),
        ({"criterion": SMOOTHED}, {"criterion": {"_name": "cross_entropy"}}, "of one --criterion"),
        ({"criterion": SMOOTHED}, {"criterion": SMOOTHED | {"label_smoothing": 0.6}}, "0.1.*0.6"),
        ({"criterion": SMOOTHED}, {"criterion": SMOOTHED | {"label_smoothing": 0.0}}, "0.1.*0.0"),
        ({"dataset": {"valid_subset": "a"}}, {"dataset": {"valid_subset": "b"}}, "--valid-subset"),
    ],
)
def test_scores_of_other_metrics_words_or_targets_are_not_compared(tmp_path, one, other, problem):
    runs = [write(tmp_path / "a", 4.0, **one), write(tmp_path / "b", 3.0, **other)]
    with pytest.raises(ValueError, match=problem):
        best_checkpoint(runs)
    assert best_checkpoint([runs[0], write(tmp_path / "c", 3.0, **one)]).parent.name == "c"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_no_run_wins_by_a_score_that_is_no_number(tmp_path, score, metric):
    kinds = (metric, metric == "bleu")
    runs = [write(tmp_path / name, best, *kinds) for name, best in (("a", score), ("b", 9.0))]
    for order in (runs, runs[::-1]):
        with pytest.raises(
            ValueError, match=r"a/checkpoint_best\.pt: its best score is not a finite number"
        ):
            best_checkpoint(order)


def test_the_worst_checkpoint_of_an_older_run_is_not_called_the_best(tmp_path):
    run = write(tmp_path / "a", 4.0, "bleu")
    with pytest.raises(ValueError, match=r"is the worst .* model average .*/a --best 1"):
        best_checkpoint([run])


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[content.index(b"best") + 10] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "is truncated"),
        (lambda content: b"PK no checkpoint", "is truncated"),
        (lambda content: content[:-200], "is truncated"),
        (flipped, r"is damaged \(.*data\.pkl"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage, message):
    folder = write(tmp_path / "a", 1.0)
    file, other = folder / "checkpoint_best.pt", folder / "checkpoint_last.pt"
    damaged = damage(file.read_bytes())
    for path in (file, other):
        path.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"checkpoint_best\.pt {message}"):
        best_checkpoint([folder])
    with pytest.raises(ValueError, match=rf"checkpoint_last\.pt {message}"):
        last_checkpoints(folder, 1)


def test_a_missing_file_or_value_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        best_checkpoint([tmp_path])
    torch.save({"model": {}}, tmp_path / "checkpoint_last.pt")
    with pytest.raises(ValueError, match=r"checkpoint_last\.pt: damaged, or not a training check"):
        last_checkpoints(tmp_path, 1)
    with pytest.raises(ValueError, match="'nothing'"):
        read_checkpoint(write(tmp_path / "a", 1.0) / "checkpoint_best.pt", "extra_state", "nothing")
