"""Which checkpoints are the last and the best, their exact average, and what is refused."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from highrank_plugins.training.checkpoints import (
    average_checkpoints,
    best_checkpoint,
    best_checkpoints,
    last_checkpoints,
)

ONES = torch.ones(2)
TIED = ("embed_tokens", "output_projection")


def save(
    path, embedding=ONES, steps=0, score=None, metric="loss", maximise=False, words=None,
    options=None, blocks=None, **more,
) -> Path:  # fmt: skip
    """Write a checkpoint as fairseq does, with an embedding that is also the output layer."""
    path.parent.mkdir(exist_ok=True)
    by = {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": maximise}
    model = {"_name": "transformer_softmax", **(options or {})}
    state = {
        "args": None,
        "cfg": {"task": {"_name": "translation"}, "model": model, "checkpoint": by}
        | (blocks or {}),
        "model": {
            **{f"decoder.{name}.weight": embedding for name in TIED},
            "decoder.steps": torch.tensor([steps]),
            **more,
        },
        "task_state": {"dictionaries": {"target": words}} if words else {},
        "optimizer_history": [
            {"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": steps}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": score, "best": score},
        "last_optimizer_state": {"exp_avg": embedding},
    }
    torch.save(state, path)
    return path


def write(folder: Path, given: dict[str, int] | list[float | None], **more) -> Path:
    """Write checkpoints by name with their updates, or after 10, 20, … updates with scores."""
    if isinstance(given, dict):  # names without `checkpoint` and `.pt`
        for name, steps in given.items():
            save(folder / f"checkpoint{name}.pt", steps=steps)
    else:
        for number, score in enumerate(given, 1):
            save(folder / f"checkpoint{number}.pt", steps=10 * number, score=score, **more)
    return folder


def names(paths: list[Path]) -> list[str]:
    return [path.stem.removeprefix("checkpoint") for path in paths]


MANY = {"1": 20, "2": 35, "_2_30": 30, "_3_40": 40, "_3_100": 100, "10": 450, "_11_500": 500}
COPIES = {"_1_200": 200, "2": 400, "_2_400": 400, "_last": 400}  # of one number of updates
NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("given", "by", "count", "wanted"),
    [
        (MANY | {"_best": 700}, None, 7, ["1", "_2_30", "2", "_3_40", "_3_100", "10", "_11_500"]),
        (MANY, None, 1, ["_11_500"]),
        ({"_1_200": 200, "_1_400": 400, "_last": 450}, None, 2, ["_1_400", "_last"]),
        ({"_last": 150, "_1_200": 200, "_1_400": 400}, None, 2, ["_1_200", "_1_400"]),
        (COPIES, None, 2, ["_1_200", "2"]),
        ([5.0, 3.0, None, 2.0, 4.0], {}, 2, ["2", "4"]),
        ([5.0, 3.0, 4.0], {"metric": "score", "maximise": True}, 2, ["1", "3"]),
        ([5.0, 3.0, 9.0], {"metric": "bleu"}, 2, ["1", "3"]),  # a run without the flag
        *(([score, 3.0, 2.0], {}, 2, ["2", "3"]) for score in NO_NUMBERS),
    ],
)
def test_the_last_or_best_checkpoints_are_taken_in_training_order(
    tmp_path, given, by, count, wanted
):
    choose = last_checkpoints if by is None else best_checkpoints
    assert names(choose(write(tmp_path, given, **(by or {})), count)) == wanted


def test_copies_count_once_and_too_few_checkpoints_are_refused(tmp_path):
    directory = write(tmp_path / "a", [5.0, 3.0, None, 2.0, 4.0])
    save(directory / "checkpoint_best.pt", steps=40, score=2.0)  # a copy
    save(directory / "checkpoint.best_loss_1.000.pt", steps=25, score=1.0)
    assert names(best_checkpoints(directory, 3)) == ["2", ".best_loss_1.000", "4"]
    save(directory / "checkpoint4.pt", steps=45, score=2.0, metric="bleu")
    with pytest.raises(ValueError, match=r"\.pt has --best-check.* loss, and .*4\.pt has bleu"):
        best_checkpoints(directory, 2)
    with pytest.raises(ValueError, match=r"found 2 of 3 checkpoints .*--last"):
        last_checkpoints(write(tmp_path / "copies", COPIES), 3)
    with pytest.raises(ValueError, match="found 1 of 2 checkpoints with a validation score"):
        best_checkpoints(write(tmp_path / "b", [None, 3.0]), 2)
    with pytest.raises(ValueError, match="trian: no such folder"):
        last_checkpoints(tmp_path / "trian", 2)


def averaged(paths: list[Path], tmp_path: Path) -> dict:
    average_checkpoints(paths, tmp_path / "average.pt")
    return torch.load(tmp_path / "average.pt", weights_only=True)


def test_the_mean_of_float32_is_as_exact_as_float32_can_be_and_tied_weights_stay_tied(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(5, 3, generator=generator) * 10**i for i in (-6, 0, 6)]
    paths = [
        save(tmp_path / f"{i}.pt", value, steps=i, other=value.clone(), options={"head_dropout": i})
        for i, value in enumerate(values)
    ]
    state = averaged(paths, tmp_path)
    want, model = torch.stack([value.double() for value in values]).mean(0).float(), state["model"]
    embedding, output = (model[f"decoder.{name}.weight"] for name in TIED)
    assert torch.equal(embedding, want) and torch.equal(model["other"], want)
    assert output.data_ptr() == embedding.data_ptr() != model["other"].data_ptr()
    assert model["decoder.steps"].item() == 2
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert "last_optimizer_state" not in state and type(state["cfg"]) is dict
    assert state["cfg"]["model"] == {"_name": "transformer_softmax", "head_dropout": 2}
    for dtype in (torch.float16, torch.bfloat16, torch.float64):  # equal weights are their average
        same = values[1].to(dtype)
        model = averaged([save(path, same) for path in paths], tmp_path)["model"]
        assert model["decoder.embed_tokens.weight"].dtype == dtype
        assert torch.equal(model["decoder.embed_tokens.weight"], same)


def test_a_checkpoint_of_fairseq_0_10_is_averaged(tmp_path):
    path = save(tmp_path / "checkpoint1.pt", steps=1, score=3.0)
    state = torch.load(path, weights_only=True)
    metric = {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True}
    state["args"], state["cfg"] = Namespace(arch="transformer", task="translation", **metric), None
    torch.save(state, path)
    assert names(best_checkpoints(tmp_path, 1)) == ["1"]
    made = averaged([path, path], tmp_path)
    assert made["args"] is None and made["cfg"]["model"].arch == "transformer"
    assert made["cfg"]["checkpoint"]["best_checkpoint_metric"] == "bleu"


OTHER_RUN = r"2\.pt: .* not belong to one training run"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"embedding": torch.ones(3)}, OTHER_RUN),
        ({}, {"new": torch.ones(1)}, OTHER_RUN),
        ({"options": {"head_pointwise": "gss"}}, {"options": {"head_pointwise": "sigsoftmax"}},
         r"1\.pt has --head-pointwise gss, and .*2\.pt has sigsoftmax: average"),
        ({"words": "a"}, {"words": "b"}, "one run, with one dictionary"),
    ],
)  # fmt: skip
def test_checkpoints_of_other_models_or_functions_are_refused(tmp_path, first, second, message):
    paths = [save(tmp_path / "1.pt", **first), save(tmp_path / "2.pt", **second)]
    with pytest.raises(ValueError, match=message):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def best(folder: Path, score: float, **more) -> Path:
    """Write the best checkpoint of a run into a new folder; return the folder."""
    return save(folder / "checkpoint_best.pt", score=score, **more).parent


def test_the_lowest_loss_or_the_highest_bleu_is_the_best(tmp_path):
    trained, finetuned = best(tmp_path / "train", 6.1), best(tmp_path / "finetune", 6.2)
    assert best_checkpoint([trained, finetuned]).parent == trained
    better = best(tmp_path / "again", 6.05)
    assert best_checkpoint([trained, finetuned, better]).parent == better
    by = {"metric": "bleu", "maximise": True}
    runs = [best(tmp_path / name, score, **by) for name, score in (("a", 4.0), ("b", 9.0))]
    assert best_checkpoint(runs).parent == runs[1]


SMOOTHED = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1}


def smoothed(**criterion):
    return {"blocks": {"criterion": SMOOTHED | criterion}}


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ({}, {"metric": "bleu", "maximise": True}, "b/checkpoint_best.pt has bleu: these scores "),
        ({}, {"metric": "nll_loss"}, "a/checkpoint_best.pt has --best-.* loss, .* has nll_loss"),
        ({"words": "f00"}, {"words": "ba5"}, "f00.*ba5.*of one dictionary"),
        (smoothed(), {"blocks": {"criterion": {"_name": "cross_entropy"}}}, "of one --criterion"),
        (smoothed(), smoothed(label_smoothing=0.6), "0.1.*0.6"),
        ({"blocks": {"dataset": {"valid_subset": "a"}}},
         {"blocks": {"dataset": {"valid_subset": "b"}}}, "--valid-subset"),
    ],
)  # fmt: skip
def test_scores_of_other_metrics_words_or_targets_are_not_compared(tmp_path, one, other, problem):
    runs = [best(tmp_path / "a", 4.0, **one), best(tmp_path / "b", 3.0, **other)]
    with pytest.raises(ValueError, match=problem):
        best_checkpoint(runs)
    assert best_checkpoint([runs[0], best(tmp_path / "c", 3.0, **one)]).parent.name == "c"


@pytest.mark.parametrize("score", NO_NUMBERS)
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_no_run_wins_by_a_score_that_is_no_number_or_by_its_worst_checkpoint(
    tmp_path, score, metric
):
    by = {"metric": metric, "maximise": metric == "bleu"}
    runs = [best(tmp_path / name, found, **by) for name, found in (("a", score), ("b", 9.0))]
    for order in (runs, runs[::-1]):
        with pytest.raises(ValueError, match=r"a/checkpoint_best\.pt: its best score is not a fin"):
            best_checkpoint(order)
    with pytest.raises(ValueError, match=r"is the worst .* model average .*/c --best 1"):
        best_checkpoint([best(tmp_path / "c", 4.0, metric="bleu")])  # of an older run


def test_a_damaged_file_is_named(tmp_path):
    folder = best(tmp_path / "a", 1.0)
    file, other = folder / "checkpoint_best.pt", folder / "checkpoint_last.pt"
    flipped = bytearray(file.read_bytes())
    flipped[flipped.index(b"best") + 10] ^= 1
    file.write_bytes(flipped)
    with pytest.raises(ValueError, match=rf"{file.name} is damaged \(.*data\.pkl"):
        best_checkpoint([folder])
    path = save(tmp_path / "0.pt", torch.zeros(1000))
    content = bytearray(path.read_bytes())
    content[content.index(bytes(2000)) + 900] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"0\.pt is damaged"):
        average_checkpoints([path, path], tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()
    torch.save({"model": {}}, other)
    with pytest.raises(ValueError, match=r"checkpoint_last\.pt is refused: it lacks 'optimizer"):
        last_checkpoints(folder, 1)
