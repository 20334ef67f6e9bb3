"""A resumed run has the batches and the averages of an uninterrupted one."""

from shlex import split

import pytest
import torch

from tests.compat.conftest import DECODER, run_training, translation_options
from tests.trainings import same

# 62 sentences make 8 batches an epoch
COMMON = split("--batch-size 8 --disable-validation")
TRANSLATION = [*translation_options(), *COMMON]
MODELING = split("--task language_modeling --arch transformer_lm --tokens-per-sample 6")
LANGUAGE_MODEL = [*MODELING, *DECODER, *COMMON, "--dropout", 0]
UPDATES = 24


@pytest.mark.parametrize(
    ("part", "options", "stops"),
    [("", TRANSLATION, (11, 16)), ("lm", LANGUAGE_MODEL, (11,))],  # 11 lies within epoch 2
)
def test_a_resumed_run_equals_an_uninterrupted_one(part, options, stops, data, tmp_path):
    def train(name: str, updates: int) -> dict:
        return run_training(data / part, tmp_path / name, *options, "--max-update", updates)[
            "model"
        ]

    whole = train("whole", UPDATES)
    for stop in stops:
        train(str(stop), stop)
        assert same(train(str(stop), UPDATES), whole)


DECAY = ["--store-ema", "--ema-decay", 0.5]
EVERY_THIRD = [*DECAY, "--ema-update-freq", 3, "--ema-fp32", "--save-interval-updates", 2]


def train(data, save_dir, updates: int, *more) -> dict:
    return run_training(data, save_dir, *translation_options(**{"--max-update": updates}), *more)


def test_resumed_averages_equal_uninterrupted_ones(data, tmp_path):
    unbroken = train(data, tmp_path / "a", 4, *EVERY_THIRD)
    middle = tmp_path / "a" / "checkpoint_1_2.pt"
    resumed = train(data, tmp_path / "b", 4, *EVERY_THIRD, "--restore-file", middle)
    assert same(unbroken["model"], resumed["model"])
    assert not same(unbroken["model"], unbroken["extra_state"]["ema"])
    for averages in ("ema", "ema_fp32_params"):
        assert same(unbroken["extra_state"][averages], resumed["extra_state"][averages])


def test_averages_start_from_the_weights_of_a_checkpoint(data, translator, tmp_path):
    start = torch.load(translator, weights_only=True)["model"]
    more = ["--finetune-from-model", translator]
    state = train(data, tmp_path, 1, *DECAY, *more)
    assert not same(start, state["model"])
    for name, average in state["extra_state"]["ema"].items():
        if "version" not in name:  # fairseq does not average it
            torch.testing.assert_close(average, (start[name] + state["model"][name]) / 2)
