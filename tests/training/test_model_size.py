"""The disk space that a training run will take, against what it has taken."""

import shutil
from argparse import Namespace

import pytest

from highrank_plugins.training.model_size import check_space, still_needed, training_space
from tests.trainings import OUR_LOSS, task_and_shape, train

KEEP = {"save_interval_updates": 2, "keep_interval_updates": 2, "keep_last_epochs": 1}


def as_options(words: list[object]) -> dict[str, object]:
    """Return `--flag value --bare` as a configuration has it."""
    options: dict[str, object] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if str(word).startswith("--"):
            bare = str(following).startswith("--")
            options[str(word)[2:].replace("-", "_")] = True if bare else following
    return options


def of_training(arch: str) -> dict[str, object]:
    return as_options([*task_and_shape(arch), *OUR_LOSS]) | {"arch": arch} | KEEP


@pytest.mark.slow
def test_the_estimate_is_one_checkpoint_above_the_space_taken(mt_data, tmp_path):
    arch = "transformer_mixtape_tiny"
    keep = [word for name, value in KEEP.items() for word in (f"--{name.replace('_', '-')}", value)]
    train(mt_data, tmp_path / "save", arch, 6, *keep)
    sizes = [path.stat().st_size for path in (tmp_path / "save").glob("*.pt")]
    assert len(sizes) == 4  # two of updates, the best, the last
    space = training_space(of_training(arch), mt_data)
    assert space == pytest.approx(5 * max(sizes), rel=0.15)  # and some settings


@pytest.mark.parametrize("arch", ["lstm_mos", "transformer_lm_gss", "awd_lstm_lm_mos"])
def test_every_kind_of_model_has_a_size(mt_data, lm_data, arch):
    data = lm_data if "_lm_" in arch else mt_data
    every_epoch = of_training(arch) | {"no_epoch_checkpoints": False, "keep_last_epochs": -1}
    space = training_space(of_training(arch), data)
    assert space > 5 * 12 * 1000
    assert training_space(every_epoch, data) == space * 6 // 5


@pytest.mark.parametrize(
    ("there", "needed"),
    [
        ({}, 1000),
        ({"checkpoint_last.pt": 300}, 700),
        ({"a.pt": 600, "checkpoint_last.pt": 300}, 300),
    ],
)
def test_the_disk_must_hold_the_checkpoints_to_come(tmp_path, there, needed):
    for name, size in there.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert still_needed(1000, tmp_path) == needed


def test_a_second_link_to_a_checkpoint_takes_no_space(tmp_path):
    (tmp_path / "checkpoint_best.pt").write_bytes(bytes(300))
    (tmp_path / "checkpoint_last.pt").hardlink_to(tmp_path / "checkpoint_best.pt")
    assert still_needed(1000, tmp_path) == 700


def test_a_full_disk_is_refused(lm_data, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Namespace(free=1000))
    with pytest.raises(ValueError, match=r"kB are needed on the disk of .*, 1\.0 kB are free"):
        check_space(of_training("transformer_lm_gss"), str(lm_data), tmp_path)
