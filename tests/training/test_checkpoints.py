"""Which checkpoints are the last and the best, their exact average, and what is refused."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from highrank_plugins.training.checkpoints import (
    average_checkpoints,
    best_checkpoints,
    last_checkpoints,
)


def save(
    path: Path,
    embedding: torch.Tensor,
    steps: int = 0,
    val_loss: float | None = None,
    options: dict | None = None,
    words: str | None = None,
    metric: str | None = None,
    **more: torch.Tensor,
) -> Path:
    """Write a checkpoint as fairseq does, with an embedding that is also the output layer."""
    state = {
        "args": None,
        "cfg": {
            "task": {"_name": "translation"},
            "model": {"_name": "transformer_softmax", **(options or {})},
            "checkpoint": {
                "best_checkpoint_metric": metric or ("score" if (val_loss or 0) < 0 else "loss"),
                "maximize_best_checkpoint_metric": val_loss is not None and val_loss < 0,
            },
        },
        "model": {
            "decoder.embed_tokens.weight": embedding,
            "decoder.output_projection.weight": embedding,
            "decoder.steps": torch.tensor([steps]),
            **more,
        },
        "task_state": {"dictionaries": {"target": words}} if words else {},
        "optimizer_history": [
            {"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": steps}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": val_loss},
        "last_optimizer_state": {"exp_avg": embedding},
    }
    torch.save(state, path)
    return path


def averaged(paths: list[Path], tmp_path: Path) -> dict:
    average_checkpoints(paths, tmp_path / "average.pt")
    return torch.load(tmp_path / "average.pt", weights_only=True)


def directory_of(tmp_path: Path, updates: dict[str, int]) -> Path:
    """Write checkpoints by name (without `checkpoint` and `.pt`) with their numbers of updates."""
    for name, steps in updates.items():
        save(tmp_path / f"checkpoint{name}.pt", torch.ones(2), steps=steps)
    return tmp_path


def last(directory: Path, count: int) -> list[str]:
    return [path.stem.removeprefix("checkpoint") for path in last_checkpoints(directory, count)]


MANY = {"1": 20, "2": 35, "_2_30": 30, "_3_40": 40, "_3_100": 100, "10": 450, "_11_500": 500}
COPIES = {"_1_200": 200, "2": 400, "_2_400": 400, "_last": 400}  # of one number of updates


@pytest.mark.parametrize(
    ("updates", "count", "wanted"),
    [
        (MANY | {"_best": 700}, 7, ["1", "_2_30", "2", "_3_40", "_3_100", "10", "_11_500"]),
        (MANY, 1, ["_11_500"]),
        ({"_1_200": 200, "_1_400": 400, "_last": 450}, 2, ["_1_400", "_last"]),
        ({"_last": 150, "_1_200": 200, "_1_400": 400}, 2, ["_1_200", "_1_400"]),
        (COPIES, 2, ["_1_200", "2"]),
    ],
)
def test_the_last_checkpoints_are_taken_in_training_order(tmp_path, updates, count, wanted):
    assert last(directory_of(tmp_path, updates), count) == wanted


def test_too_few_checkpoints_and_a_mistyped_folder_are_errors(tmp_path):
    directory = directory_of(tmp_path, COPIES)
    with pytest.raises(ValueError, match=r"found 2 of 3 checkpoints .*--last"):
        last_checkpoints(directory, 3)
    with pytest.raises(ValueError, match="trian: no such folder"):
        last_checkpoints(tmp_path / "trian", 2)


def test_the_mean_of_float32_is_as_exact_as_float32_can_be(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(5, 3, generator=generator) * 10**i for i in (-6, 0, 6)]
    paths = [save(tmp_path / f"{i}.pt", value, steps=i) for i, value in enumerate(values)]
    state = averaged(paths, tmp_path)
    want = torch.stack([value.double() for value in values]).mean(0).float()
    assert torch.equal(state["model"]["decoder.embed_tokens.weight"], want)
    assert state["model"]["decoder.steps"].item() == 2
    assert state["optimizer_history"][-1]["num_updates"] == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_weights_are_their_own_average(tmp_path, dtype):
    value = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    paths = [save(tmp_path / f"{i}.pt", value) for i in range(3)]
    got = averaged(paths, tmp_path)["model"]["decoder.embed_tokens.weight"]
    assert got.dtype == dtype
    assert torch.equal(got, value)


def test_tied_weights_stay_tied_and_others_apart(tmp_path):
    values = [torch.full((2, 2), float(i), dtype=torch.float64) for i in (1, 3)]
    paths = [
        save(tmp_path / f"{i}.pt", value, other=value.clone()) for i, value in enumerate(values)
    ]
    model = averaged(paths, tmp_path)["model"]
    embedding, output = (
        model["decoder.embed_tokens.weight"],
        model["decoder.output_projection.weight"],
    )
    assert torch.equal(output, torch.full((2, 2), 2.0, dtype=torch.float64))
    assert embedding.data_ptr() == output.data_ptr()
    assert model["other"].data_ptr() != output.data_ptr()


def test_the_optimizer_is_left_out_and_the_configuration_is_plain(tmp_path):
    state = averaged([save(tmp_path / "1.pt", torch.ones(2))], tmp_path)
    assert "last_optimizer_state" not in state
    assert type(state["cfg"]) is dict
    assert state["cfg"]["model"] == {"_name": "transformer_softmax"}


@pytest.mark.parametrize(
    "second", [{"embedding": torch.ones(3)}, {"embedding": torch.ones(2), "new": torch.ones(1)}]
)
def test_checkpoints_of_other_models_are_refused(tmp_path, second):
    paths = [save(tmp_path / "1.pt", torch.ones(2)), save(tmp_path / "2.pt", **second)]
    with pytest.raises(ValueError, match=r"2\.pt: .* not belong to one training run"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def best(directory: Path, count: int) -> list[str]:
    paths = best_checkpoints(directory, count)
    return [path.stem.removeprefix("checkpoint") for path in paths]


def scored(tmp_path: Path, scores: list[float | None]) -> Path:
    """Write checkpoint1.pt after 10 updates, checkpoint2.pt after 20, … with validation scores."""
    for number, score in enumerate(scores, 1):
        save(tmp_path / f"checkpoint{number}.pt", torch.ones(2), 10 * number, score)
    return tmp_path


def test_the_best_checkpoints_are_taken_by_loss_in_training_order(tmp_path):
    directory = scored(tmp_path, [5.0, 3.0, None, 2.0, 4.0])
    save(directory / "checkpoint_best.pt", torch.ones(2), 40, 2.0)  # a copy
    save(directory / "checkpoint.best_loss_1.000.pt", torch.ones(2), 25, 1.0)
    assert best(directory, 3) == ["2", ".best_loss_1.000", "4"]


def test_a_score_to_maximise_is_maximised(tmp_path):
    assert best(scored(tmp_path, [-5.0, -3.0, -4.0]), 2) == ["2", "3"]


def test_a_run_without_the_flag_is_averaged_by_the_name_of_its_metric(tmp_path):
    for number, score in enumerate([5.0, 3.0, 9.0], 1):
        save(tmp_path / f"checkpoint{number}.pt", torch.ones(2), number, score, metric="bleu")
    assert best(tmp_path, 2) == ["1", "3"]
    save(tmp_path / "checkpoint4.pt", torch.ones(2), 4, 2.0)
    with pytest.raises(ValueError, match=r"t\d\.pt was validated by bleu, and .*t4\.pt by loss"):
        best(tmp_path, 2)


def test_a_checkpoint_of_fairseq_0_10_is_averaged(tmp_path):
    path = save(tmp_path / "checkpoint1.pt", torch.ones(2), 1, 3.0)
    state = torch.load(path, weights_only=True)
    metric = {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True}
    state["args"], state["cfg"] = Namespace(arch="transformer", task="translation", **metric), None
    torch.save(state, path)
    assert best(tmp_path, 1) == ["1"]
    made = averaged([path, path], tmp_path)
    assert made["args"] is None and made["cfg"]["model"].arch == "transformer"
    assert made["cfg"]["checkpoint"]["best_checkpoint_metric"] == "bleu"


def test_checkpoints_without_a_validation_score_are_never_the_best(tmp_path):
    with pytest.raises(ValueError, match="found 1 of 2 checkpoints with a validation score"):
        best(scored(tmp_path, [None, 3.0]), 2)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_never_the_best(tmp_path, score):
    assert best(scored(tmp_path, [score, 3.0, 2.0]), 2) == ["2", "3"]


MEASURE = """
import sys, threading, time
from pathlib import Path
import highrank_plugins; highrank_plugins.register()
from highrank_plugins.training.checkpoints import average_checkpoints

def private():
    rows = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["RssAnon"].split()[0]) * 1024

def watch():
    while True:
        peak[0] = max(peak[0], private())
        time.sleep(0.001)

before = private()
peak = [before]
threading.Thread(target=watch, daemon=True).start()
average_checkpoints([Path(name) for name in sys.argv[2:]], Path(sys.argv[1]))
print(peak[0] - before)
"""


def test_averaging_needs_the_memory_of_two_checkpoints(tmp_path):
    numbers = 4_000_000
    tensors = {f"layer{i}": torch.randn(numbers // 8) for i in range(8)}
    paths = [save(tmp_path / f"{i}.pt", torch.ones(2), **tensors) for i in range(6)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # what is freed goes back at once
    peaks = []
    for count in (2, 6):
        words = [sys.executable, "-c", MEASURE, str(tmp_path / "average.pt"), *paths[:count]]
        done = subprocess.run(words, env=env, capture_output=True, check=True)
        peaks.append(int(done.stdout))
    # a sum in float64 is two in float32; a tensor (an eighth of them) is on its way in both types
    assert max(peaks) < 2.75 * 4 * numbers
    assert peaks[1] < 1.15 * peaks[0]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"options": {"head_pointwise": "gss"}}, {"options": {"head_pointwise": "sigsoftmax"}},
         "--head-pointwise is gss, but sigsoftmax there"),
        ({"options": {"head_context_scale": 1.0}}, {"options": {"head_context_scale": 4.0}},
         "--head-context-scale is 1.0, but 4.0 there"),
        ({"words": "a"}, {"words": "b"}, "the dictionaries differ"),
    ],
)  # fmt: skip
def test_checkpoints_of_other_functions_are_refused(tmp_path, first, second, message):
    weight = torch.ones(2, 2)
    paths = [save(tmp_path / "1.pt", weight, **first), save(tmp_path / "2.pt", weight, **second)]
    with pytest.raises(ValueError, match=f"1.pt is of another training run.*{message}"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def test_options_that_only_affect_training_may_differ(tmp_path):
    weight = torch.ones(2, 2)
    paths = [
        save(tmp_path / f"{rate}.pt", weight, options={"head_dropout": rate}) for rate in (0.1, 0.2)
    ]
    average_checkpoints(paths, tmp_path / "average.pt")
    assert (tmp_path / "average.pt").exists()


def test_damaged_weights_are_not_averaged(tmp_path):
    paths = [save(tmp_path / f"{i}.pt", torch.zeros(1000)) for i in range(2)]
    content = bytearray(paths[0].read_bytes())
    content[content.index(bytes(2000)) + 900] ^= 4
    paths[0].write_bytes(content)
    with pytest.raises(ValueError, match=r"0\.pt is damaged"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()
