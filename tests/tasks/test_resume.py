"""An interrupted training run continues as if it had not been interrupted."""

import re

import pytest
import torch

from tests.stream_corpus import LINES, binarise, train_streams, write_text
from tests.trainings import last, leaves

# the validation after epoch 2 is what makes NT-ASGD switch here
AVERAGING = {"nt": ["--nonmono", 0, "--lr", 10], "et": ["--asgd-at-epoch", 1]}
EPOCHS = ["--max-epoch", 3]
STOPS = {"in an epoch": ["--max-update", 39], "between epochs": ["--max-epoch", 2]}


def end_of(save_dir):
    """Return the parts of the last checkpoint that a resumed training run could get wrong."""
    state = torch.load(last(save_dir), weights_only=True)
    return dict(leaves({"model": state["model"], "optimizer": state["last_optimizer_state"]}))


def check_same(got, want):
    assert got.keys() == want.keys()
    for place, value in want.items():
        equal = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
        assert equal(got[place], value), place


@pytest.fixture(scope="module")
def unbroken(stream_data, tmp_path_factory):
    """Return the ends of uninterrupted training runs, and what they printed."""
    ends = {}

    def run(name):
        if name not in ends:
            folder = tmp_path_factory.mktemp(name)
            done = train_streams(stream_data, folder, *EPOCHS, *AVERAGING[name])
            ends[name] = end_of(folder), done.output
        return ends[name]

    return run


@pytest.mark.parametrize(
    ("averaging", "stop"),
    [
        ("nt", "in an epoch"),
        ("nt", "between epochs"),
        # so does the training run below that validates on its own text
        pytest.param("et", "in an epoch", marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    stop, averaging, unbroken, stream_data, tmp_path
):
    want, output = unbroken(averaging)
    train_streams(stream_data, tmp_path, *AVERAGING[averaging], *STOPS[stop])
    resumed = train_streams(stream_data, tmp_path, *AVERAGING[averaging], *EPOCHS)
    assert "Loaded checkpoint" in resumed.output
    check_same(end_of(tmp_path), want)
    # else the cases would not tell whether the history survives
    switched = {"nt": "from epoch 3 on", "et": "from epoch 2 on"}
    assert f"averaging the weights {switched[averaging]}" in output


def test_a_run_that_validates_on_its_training_text_can_be_resumed(unbroken, stream_data, tmp_path):
    words = [*AVERAGING["et"], "--valid-subset", "valid,train", "--batch-size-valid", 1]
    train_streams(stream_data, tmp_path, *words, *STOPS["in an epoch"])
    done = train_streams(stream_data, tmp_path, *words, *EPOCHS)
    assert "train: 543 tokens in 1 stream of 543 (--eval-streams)" in done.output
    check_same(end_of(tmp_path), unbroken("et")[0])


def test_workers_and_buffers_do_not_change_the_order(unbroken, stream_data, tmp_path):
    words = ["--num-workers", 2, "--data-buffer-size", 3]
    train_streams(stream_data, tmp_path, *EPOCHS, *AVERAGING["et"], *words)
    check_same(end_of(tmp_path), unbroken("et")[0])


EPOCHS_OF_SHARDS = ["--max-epoch", 3, "--asgd-at-epoch", 2]


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
def unbroken_on_shards(shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    train_streams(":".join(map(str, shards)), folder, *EPOCHS_OF_SHARDS)
    return end_of(folder)


@pytest.mark.parametrize("stop", [["--max-epoch", 1], ["--max-update", 25]])
def test_a_resumed_run_on_shards_equals_an_uninterrupted_one(
    shards, unbroken_on_shards, tmp_path, stop
):
    data = ":".join(map(str, shards))
    train_streams(data, tmp_path, *EPOCHS_OF_SHARDS, *stop)
    resumed = train_streams(data, tmp_path, *EPOCHS_OF_SHARDS)
    assert "Loaded checkpoint" in resumed.output
    check_same(end_of(tmp_path), unbroken_on_shards)
