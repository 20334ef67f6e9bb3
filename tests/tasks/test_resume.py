"""An interrupted run equals an uninterrupted one, and two processes train as one does."""

import functools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.free_port import free_address
from tests.stream_corpus import CERTAIN, LINES, binarise, train_streams, write_text
from tests.trainings import last, leaves

# the validation after epoch 2 is what makes NT-ASGD switch here
AVERAGING = {
    "nt": ["--nonmono", 0, "--lr", 10], "et": ["--asgd-at-epoch", 1],
    "shards": ["--asgd-at-epoch", 2],
}  # fmt: skip
SWITCHED = {"nt": 3, "et": 2, "shards": 3}
EPOCHS = ["--max-epoch", 3]


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
def train(stream_data, tmp_path_factory):
    """Return a function that trains, on two folders of one dictionary if they are asked for."""
    folders = []
    for lines in (LINES, LINES | {"train": 60}):
        folder = write_text(tmp_path_factory.mktemp("shard"), lines)
        dictionary = ["--srcdict", folders[0] / "dict.txt"] if folders else []
        folders.append(binarise(folder, *dictionary))
    for path in (*folders[1].glob("valid.*"), *folders[1].glob("test.*")):
        path.unlink()

    def train(folder, name, *words):
        data = ":".join(map(str, folders)) if name == "shards" else stream_data
        return train_streams(data, folder, *AVERAGING[name], *words)

    return train


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
    """Return a function: the end of an uninterrupted training run, and what it printed."""

    @functools.cache
    def run(name):
        done = train(folder := tmp_path_factory.mktemp(name), name, *EPOCHS)
        return end_of(folder), done.output

    return run


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("nt", ["--max-update", 39]),  # in an epoch
        ("nt", ["--max-epoch", 2]),
        # so does the training run below that validates on its own text
        pytest.param("et", ["--max-update", 39], marks=pytest.mark.long),
        ("shards", ["--max-epoch", 1]),
        ("shards", ["--max-update", 25]),
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_uninterrupted_one(name, stop, train, unbroken, tmp_path):
    want, output = unbroken(name)
    train(tmp_path, name, *stop)
    assert "Loaded checkpoint" in train(tmp_path, name, *EPOCHS).output
    check_same(end_of(tmp_path), want)
    # else the cases would not tell whether the history survives
    assert f"averaging the weights from epoch {SWITCHED[name]} on" in output


def test_a_run_that_validates_on_its_training_text_can_be_resumed(train, unbroken, tmp_path):
    words = ["--valid-subset", "valid,train", "--batch-size-valid", 1]
    train(tmp_path, "et", *words, "--max-update", 39)
    done = train(tmp_path, "et", *words, *EPOCHS)
    assert "train: 543 tokens in 1 stream of 543 (--eval-streams)" in done.output
    check_same(end_of(tmp_path), unbroken("et")[0])


def test_workers_and_buffers_do_not_change_the_order(train, unbroken, tmp_path):
    train(tmp_path, "et", *EPOCHS, "--num-workers", 2, "--data-buffer-size", 3)
    check_same(end_of(tmp_path), unbroken("et")[0])


def test_each_epoch_uses_the_next_shard(unbroken):
    sizes = re.findall(r"train: ([\d,]+) tokens in 4 streams", unbroken("shards")[1])
    assert sizes[0] == sizes[2] != sizes[1]


TOGETHER = [*CERTAIN, "--asgd-at-epoch", 1]


def train_two(data, save_dir, *options):
    """Train on both ranks, each with half of the streams unless options say otherwise."""
    group = [
        *("--distributed-world-size", 2, "--device-id", 0, "--batch-size", 2),
        *("--distributed-init-method", free_address(), "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]

    def start(rank):
        words = [*TOGETHER, *group, "--distributed-rank", rank, *options]
        return train_streams(data, save_dir, *words).output

    with ThreadPoolExecutor() as pool:
        return list(pool.map(start, (0, 1)))


@pytest.mark.parametrize("options", [(), ("--streams", 3)])  # 3: the second rank has one
def test_two_processes_equal_one(stream_data, tmp_path, options):
    alone = ("--batch-size", 3) if options else ()
    train_streams(stream_data, tmp_path / "one", *TOGETHER, *alone, "--max-epoch", 2)
    train_two(stream_data, tmp_path / "two", *options, "--max-update", 22)  # in epoch 2
    outputs = train_two(stream_data, tmp_path / "two", *options, "--max-epoch", 2)
    assert "Loaded checkpoint" in outputs[0] and "training on 2 devices" in outputs[0]
    one, two = (torch.load(last(tmp_path / name), weights_only=True) for name in ("one", "two"))
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-5, atol=1e-6)
    for i, state in one["last_optimizer_state"]["state"].items():
        other = two["last_optimizer_state"]["state"][i]["ax"]
        torch.testing.assert_close(other, state["ax"], rtol=1e-5, atol=1e-6)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=1e-5)
