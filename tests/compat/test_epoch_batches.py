"""compat/epoch_batches.py: 62 sentences make 8 batches an epoch."""

from shlex import split

import pytest

from tests.compat.conftest import DECODER, run_training, translation_options

COMMON = split("--batch-size 8 --disable-validation")
TRANSLATION = [*translation_options(), *COMMON]
MODELING = split("--task language_modeling --arch transformer_lm --tokens-per-sample 6")
LANGUAGE_MODEL = [*MODELING, *DECODER, *COMMON, "--dropout", 0]
UPDATES = 24


def train(data, folder, options, updates: int) -> dict:
    return run_training(data, folder, *options, "--max-update", updates)["model"]


def difference(whole: dict, data, folder, options, stop: int) -> float:
    """Return the largest difference of an unbroken run and one stopped after `stop` updates."""
    train(data, folder, options, stop)
    resumed = train(data, folder, options, UPDATES)
    return max(float((whole[name] - resumed[name]).abs().max()) for name in whole)


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> dict:
    return train(data, tmp_path_factory.mktemp("unbroken"), TRANSLATION, UPDATES)


@pytest.mark.parametrize("stop", [11, 16], ids=["within epoch 2", "after epoch 2"])
def test_a_resumed_run_equals_an_uninterrupted_one(stop, unbroken, data, tmp_path):
    assert difference(unbroken, data, tmp_path, TRANSLATION, stop) == 0


def test_a_language_model_resumes_with_the_same_batches(data, tmp_path):
    whole = train(data / "lm", tmp_path / "whole", LANGUAGE_MODEL, UPDATES)
    assert difference(whole, data / "lm", tmp_path / "parts", LANGUAGE_MODEL, 11) == 0
