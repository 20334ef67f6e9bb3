"""The file from which an evaluation resumes: whole or old, its own or refused."""

import pickle

import pytest
import torch

from highrank_plugins.inference.streaming_model import SavedProgress

IDENTITY = {"checkpoint": "abc", "--lr": [0.1, 0.2]}


def saved(path, identity=IDENTITY):
    return SavedProgress(path, dict(identity), 0.0)


def test_saved_progress_can_be_read_back(tmp_path):
    first = saved(tmp_path / "state")
    plain = {"position": 3, "nll": [0.1], "state": None}
    first.progress["test"] = {**plain, "extra_state": [torch.arange(3.0)]}
    first.save()
    again = saved(tmp_path / "state").progress["test"]
    assert torch.equal(again.pop("extra_state")[0], torch.arange(3.0))
    assert again == plain
    first.remove()
    later = saved(tmp_path / "state")
    assert later.progress == {} and not later.path.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    progress = saved(tmp_path / "state")
    progress.progress["a"] = 1
    progress.save()
    progress.progress["b"] = lambda: None  # cannot be pickled
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        progress.save()
    assert saved(tmp_path / "state").progress == {"a": 1}


def test_the_progress_of_another_evaluation_is_refused_with_the_differences(tmp_path):
    saved(tmp_path / "state").save()
    other = {"checkpoint": "abc", "--lr": [0.3], "--split": "valid"}
    message = r"\(--lr: \[0.1, 0.2\] there, \[0.3\] now; --split: None there, valid now\).* --state"
    with pytest.raises(ValueError, match=message):
        saved(tmp_path / "state", identity=other)


FOREIGN = {"model": {"model": {}}, "list": [1], "half": {"identity": {}}, "odd": {"identity": 1},
           "tensor": torch.ones(2)}  # fmt: skip


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "empty", *FOREIGN])
def test_damaged_progress_is_refused(tmp_path, damage):
    path = tmp_path / "state"
    progress = saved(path)
    progress.progress["weights"] = torch.arange(1000.0)
    progress.save()
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(raw[:-100])
    elif damage == "flip":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif damage in FOREIGN:
        torch.save(FOREIGN[damage], path)
    else:
        path.write_text("hello" if damage == "text" else "")
    with pytest.raises(ValueError, match=r"state is .*(damaged|truncated)"):
        saved(path)
