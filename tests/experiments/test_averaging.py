"""The average of checkpoints: which, exactly, tied weights, and what is refused."""

from pathlib import Path

import pytest
import torch

from highrank_plugins.experiments.averaging import average_checkpoints, last_checkpoints


def save(path: Path, embedding: torch.Tensor, steps: int = 0, **more: torch.Tensor) -> Path:
    """A checkpoint as fairseq writes it, with an embedding that is also the output layer."""
    state = {
        "args": None,
        "cfg": {"task": {"_name": "translation"}, "model": {"_name": "transformer_softmax"}},
        "model": {
            "decoder.embed_tokens.weight": embedding,
            "decoder.output_projection.weight": embedding,
            "decoder.steps": torch.tensor([steps]),
            **more,
        },
        "optimizer_history": [
            {"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": steps}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"exp_avg": embedding},
    }
    torch.save(state, path)
    return path


def averaged(paths: list[Path], tmp_path: Path) -> dict:
    average_checkpoints(paths, tmp_path / "average.pt")
    return torch.load(tmp_path / "average.pt", weights_only=True)


def directory_of(tmp_path: Path, updates: dict[str, int]) -> Path:
    """Checkpoints by name (without `checkpoint` and `.pt`) with their numbers of updates."""
    for name, steps in updates.items():
        save(tmp_path / f"checkpoint{name}.pt", torch.ones(2), steps=steps)
    return tmp_path


def last(directory: Path, count: int) -> list[str]:
    return [path.stem.removeprefix("checkpoint") for path in last_checkpoints(directory, count)]


def test_the_last_are_taken_in_the_order_of_training(tmp_path):
    updates = {"1": 20, "2": 35, "_2_30": 30, "_3_40": 40, "_3_100": 100, "10": 450}
    directory = directory_of(tmp_path, updates | {"_11_500": 500, "_best": 700})
    assert last(directory, 7) == ["1", "_2_30", "2", "_3_40", "_3_100", "10", "_11_500"]
    assert last(directory, 1) == ["_11_500"]


def test_the_end_of_training_is_the_newest_even_if_only_in_checkpoint_last(tmp_path):
    directory = directory_of(tmp_path, {"_1_200": 200, "_1_400": 400, "_last": 450})
    assert last(directory, 2) == ["_1_400", "_last"]


def test_an_old_checkpoint_last_takes_its_place(tmp_path):
    directory = directory_of(tmp_path, {"_last": 150, "_1_200": 200, "_1_400": 400})
    assert last(directory, 2) == ["_1_200", "_1_400"]


def test_copies_with_the_same_number_of_updates_count_once(tmp_path):
    directory = directory_of(tmp_path, {"_1_200": 200, "2": 400, "_2_400": 400, "_last": 400})
    assert last(directory, 2) == ["_1_200", "2"]
    with pytest.raises(ValueError, match="has 2 checkpoints"):
        last_checkpoints(directory, 3)


def test_too_few_checkpoints_is_an_error_that_says_what_to_do(tmp_path):
    directory_of(tmp_path, {"1": 10})
    with pytest.raises(ValueError, match=r"has 1 checkpoints .*2 are to be averaged.*--last"):
        last_checkpoints(tmp_path, 2)


def not_a_training(path: Path) -> None:
    torch.save({"model": {}}, path)


@pytest.mark.parametrize(
    "damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"PK no"), not_a_training]
)
def test_a_checkpoint_that_does_not_tell_its_updates_is_named(tmp_path, damage):
    damage(tmp_path / "checkpoint_last.pt")
    with pytest.raises(ValueError, match=r"checkpoint_last\.pt: damaged, or no checkpoint"):
        last_checkpoints(tmp_path, 1)


def test_mean_of_float32_is_as_exact_as_float32_can_be(tmp_path):
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


def test_the_optimizer_is_left_out_and_the_configuration_plain(tmp_path):
    state = averaged([save(tmp_path / "1.pt", torch.ones(2))], tmp_path)
    assert "last_optimizer_state" not in state
    assert type(state["cfg"]) is dict
    assert state["cfg"]["model"] == {"_name": "transformer_softmax"}


@pytest.mark.parametrize(
    "second", [{"embedding": torch.ones(3)}, {"embedding": torch.ones(2), "new": torch.ones(1)}]
)
def test_checkpoints_of_other_models_are_refused(tmp_path, second):
    paths = [save(tmp_path / "1.pt", torch.ones(2)), save(tmp_path / "2.pt", **second)]
    with pytest.raises(ValueError, match=r"2\.pt: .* not of one training"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def test_a_truncated_checkpoint_is_refused(tmp_path):
    paths = [save(tmp_path / "1.pt", torch.ones(2)), save(tmp_path / "2.pt", torch.ones(2))]
    paths[1].write_bytes(paths[1].read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"2\.pt"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()
