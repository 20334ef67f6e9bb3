"""Test training/checkpoint_file.py."""

import pytest
import torch

from highrank_plugins.training.checkpoint_file import best_checkpoint, look_up


def write(folder, best):
    folder.mkdir()
    torch.save({"extra_state": {"best": best}, "model": {}}, folder / "checkpoint_best.pt")
    return folder


def test_the_lowest_loss_is_the_best(tmp_path):
    trained, finetuned = write(tmp_path / "train", 6.1), write(tmp_path / "finetune", 6.2)
    assert best_checkpoint([trained, finetuned]).parent == trained
    better = write(tmp_path / "again", 6.05)
    assert best_checkpoint([trained, finetuned, better]).parent == better


@pytest.mark.parametrize("content", [b"", b"no checkpoint"])
def test_a_damaged_file_is_named(tmp_path, content):
    file = tmp_path / "checkpoint_best.pt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint_best\.pt is truncated"):
        best_checkpoint([tmp_path])


def test_a_file_without_its_end_is_named(tmp_path):
    file = write(tmp_path / "a", 1.0) / "checkpoint_best.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"checkpoint_best\.pt is truncated"):
        look_up(file, "extra_state", "best")


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        best_checkpoint([tmp_path])


def test_a_missing_value_is_named(tmp_path):
    with pytest.raises(ValueError, match="'nothing'"):
        look_up(write(tmp_path / "a", 1.0) / "checkpoint_best.pt", "extra_state", "nothing")


def test_a_flipped_bit_in_a_number_is_refused(tmp_path):
    file = write(tmp_path / "a", 1.0) / "checkpoint_best.pt"
    content = bytearray(file.read_bytes())
    content[content.index(b"best") + 10] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint_best\.pt is damaged \(.*data\.pkl"):
        best_checkpoint([tmp_path / "a"])
