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


def test_the_last_are_taken_in_the_order_of_training(tmp_path):
    for name in ["1", "2", "_2_30", "_3_40", "_3_100", "10", "_last", "_best", "_11_500"]:
        (tmp_path / f"checkpoint{name}.pt").touch()
    names = [path.stem.removeprefix("checkpoint") for path in last_checkpoints(tmp_path, 7)]
    assert names == ["1", "_2_30", "2", "_3_40", "_3_100", "10", "_11_500"]
    assert [p.name for p in last_checkpoints(tmp_path, 1)] == ["checkpoint_11_500.pt"]


def test_too_few_checkpoints_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "checkpoint1.pt").touch()
    with pytest.raises(ValueError, match=r"has 1 checkpoints .*2 are to be averaged.*--last"):
        last_checkpoints(tmp_path, 2)


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
