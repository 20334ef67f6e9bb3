"""Training runs that are killed and started again have the bits of one that is not."""

import time

import pytest

from tests.faults.killing import Kill, Training, differences, draw, results
from tests.stream_corpus import LOSS, SHAPE, STREAMS
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

# --nonmono 0: the validation after epoch 2 turns averaging on
STREAM_WORDS = [*SHAPE, *LOSS, *STREAMS, "--arch", "awd_lstm_lm_softmax", "--lr", 10,
                "--nonmono", 0, "--max-epoch", 3, "--save-interval-updates", 6]  # fmt: skip
PAIR_WORDS = [*TRANSLATION, *NARROW, *OUR_LOSS, "--arch", "transformer_mos_tiny", "--max-tokens",
              700, "--max-epoch", 4, "--patience", 9, "--save-interval-updates", 3,
              "--keep-interval-updates", 1]  # fmt: skip
KILLS = {
    "language model": [
        ("fairseq.trainer:Trainer.clip_grad_norm", 9),
        ("os:replace", 3),
        ("fairseq.trainer:Trainer.valid_step", 30),
        ("fairseq.trainer:Trainer.begin_epoch", 2),
    ],
    "language model, 2 processes": [("os:fsync", 1), ("fairseq.trainer:Trainer.zero_grad", 20)],
    "translation": [
        ("fairseq.trainer:Trainer.set_num_updates", 7),
        ("os:replace", 2),
        ("fairseq.trainer:Trainer.get_train_iterator", 3),
        ("os:link", 2),
    ],
    "translation, 2 processes": [
        ("fairseq.trainer:Trainer.clip_grad_norm", 5),
        ("fairseq.trainer:Trainer.valid_step", 2),
    ],
}
pytestmark = pytest.mark.xdist_group("kills")


@pytest.fixture(scope="module")
def unbroken(stream_data, mt_data, tmp_path_factory):
    """Return a training run, the folder and results of its unbroken run, and how long that took."""
    runs = {}

    def find(name):
        if name not in runs:
            processes = 2 if "2 processes" in name else 1
            words = [stream_data, *STREAM_WORDS, "--batch-size", 4 // processes]
            if "translation" in name:
                words = [mt_data, *PAIR_WORDS]
            training = Training(tuple(map(str, words)), processes)
            folder = tmp_path_factory.mktemp("unbroken") / "one"
            began = time.monotonic()
            assert not training.start(folder)
            runs[name] = training, folder, results(folder), time.monotonic() - began
        return runs[name]

    return find


@pytest.mark.parametrize("name", KILLS)
def test_a_run_survives_kills_in_steps_saves_and_validations(name, unbroken, tmp_path):
    training, _, want, _ = unbroken(name)
    for index, (function, call) in enumerate(KILLS[name]):
        kill = Kill(function, call, rank=index % training.processes)
        assert training.start(tmp_path / "one", kill), f"{kill} never came"
    assert not training.start(tmp_path / "one")
    assert not differences(results(tmp_path / "one"), want)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", KILLS)
def test_a_run_killed_25_times_ends_with_the_same_bits(name, unbroken, tmp_path):
    training, folder, want, seconds = unbroken(name)
    moments = draw(7, folder, seconds, training.processes)
    kills = ends = 0
    is_running = True
    while kills < 25 or is_running:
        is_running = training.start(tmp_path / str(ends), next(moments) if kills < 25 else None)
        kills += is_running
        if not is_running:
            assert not differences(results(tmp_path / str(ends)), want), f"after {kills} kills"
            ends += 1
    print(f"{name}: {kills} kills, {ends} training runs")
