"""Training runs that are killed and started again have the bits of one that is not."""

import time

import pytest

from tests.faults.killing import TRAINER, Kill, differences, draw, results, train
from tests.stream_corpus import LOSS, SHAPE, STREAMS
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

# --nonmono 0: the validation after epoch 2 turns averaging on
STREAM_WORDS = [*SHAPE, *LOSS, *STREAMS, "--arch", "awd_lstm_lm_softmax", "--lr", 10,
                "--nonmono", 0, "--max-epoch", 3, "--save-interval-updates", 6]  # fmt: skip
PAIR_WORDS = [*TRANSLATION, *NARROW, *OUR_LOSS, "--arch", "transformer_mos_tiny", "--max-tokens",
              700, "--max-epoch", 4, "--patience", 9, "--save-interval-updates", 3,
              "--keep-interval-updates", 1]  # fmt: skip
KILLS = {
    "language model": [(f"{TRAINER}.clip_grad_norm", 9), ("os:replace", 3),
                       (f"{TRAINER}.valid_step", 30), (f"{TRAINER}.begin_epoch", 2)],
    "language model, 2 processes": [("os:fsync", 1), (f"{TRAINER}.zero_grad", 20)],
    "translation": [(f"{TRAINER}.set_num_updates", 7), ("os:replace", 2),
                    (f"{TRAINER}.get_train_iterator", 3), ("os:link", 2)],
    "translation, 2 processes": [(f"{TRAINER}.clip_grad_norm", 5), (f"{TRAINER}.valid_step", 2)],
}  # fmt: skip
pytestmark = pytest.mark.xdist_group("kills")


@pytest.fixture(scope="module", params=KILLS)
def unbroken(request, stream_data, mt_data, tmp_path_factory):
    """Return name, words, processes, results and seconds of an unbroken training run."""
    processes = 2 if "2 processes" in request.param else 1
    words = [stream_data, *STREAM_WORDS, "--batch-size", 4 // processes]
    if "translation" in request.param:
        words = [mt_data, *PAIR_WORDS]
    folder, began = tmp_path_factory.mktemp("unbroken") / "one", time.monotonic()
    assert not train(words, processes, folder)
    return request.param, words, processes, results(folder), time.monotonic() - began


def test_a_run_survives_kills_in_steps_saves_and_validations(unbroken, tmp_path):
    name, words, processes, want, _ = unbroken
    for index, (function, call) in enumerate(KILLS[name]):
        kill = Kill(function, call, rank=index % processes)
        assert train(words, processes, tmp_path / "one", kill), f"{kill} never came"
    assert not train(words, processes, tmp_path / "one")
    assert not differences(results(tmp_path / "one"), want)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_run_killed_25_times_ends_with_the_same_bits(unbroken, tmp_path):
    name, words, processes, want, seconds = unbroken
    moments = draw(7, seconds, processes)
    kills = ends = 0
    is_running = True
    while kills < 25 or is_running:
        kill = next(moments) if kills < 25 else None
        is_running = train(words, processes, tmp_path / str(ends), kill)
        kills += is_running
        if not is_running:
            assert not differences(results(tmp_path / str(ends)), want), f"after {kills} kills"
            ends += 1
    print(f"{name}: {kills} kills, {ends} training runs")
