"""compat/epoch_batches.py: 62 sentences make 8 batches an epoch."""

from shlex import split

import pytest

from tests.compat.conftest import DECODER, run_training, translation_options
from tests.trainings import same

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
