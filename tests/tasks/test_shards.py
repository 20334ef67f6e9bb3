"""Training text in several folders, one an epoch, as for a corpus that memory cannot hold."""

import re

import pytest

from tests.stream_corpus import LINES, binarise, train_streams, write_text
from tests.tasks.test_resume import check_same, end_of

EPOCHS = ["--max-epoch", 3, "--asgd-at-epoch", 2]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Write two folders of one dictionary; the second has only a training text."""
    folders = []
    for lines in (LINES, LINES | {"train": 60}):
        folder = write_text(tmp_path_factory.mktemp("shard"), lines)
        dictionary = ["--srcdict", folders[0] / "dict.txt"] if folders else []
        folders.append(binarise(folder, *dictionary))
    for path in (*folders[1].glob("valid.*"), *folders[1].glob("test.*")):
        path.unlink()
    return folders


def test_each_epoch_uses_the_next_shard(shards, tmp_path):
    done = train_streams(":".join(map(str, shards)), tmp_path, "--max-epoch", 3)
    sizes = re.findall(r"train: ([\d,]+) tokens in 4 streams", done.output)
    assert sizes[0] == sizes[2] != sizes[1]


@pytest.fixture(scope="module")
def unbroken(shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    train_streams(":".join(map(str, shards)), folder, *EPOCHS)
    return end_of(folder)


@pytest.mark.parametrize("stop", [["--max-epoch", 1], ["--max-update", 25]])
def test_a_resumed_run_equals_an_uninterrupted_one(shards, unbroken, tmp_path, stop):
    data = ":".join(map(str, shards))
    train_streams(data, tmp_path, *EPOCHS, *stop)
    resumed = train_streams(data, tmp_path, *EPOCHS)
    assert "Loaded checkpoint" in resumed.output
    check_same(end_of(tmp_path), unbroken)
