"""`highrank evaluate dynamic` and `cache` on a checkpoint that fairseq-train wrote."""

import json
import math
import re

import pytest

from highrank_plugins.inference import adaptive_evaluation
from highrank_plugins.inference.streaming_model import SavedProgress
from tests.cli import highrank, refused
from tests.fairseq_cli import run
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import last

STEP = "--lr 0.01 --eps 0.001 --lambda 0.01 --train-batch-size 10".split()
CACHE = "--theta 0.5 --lambda 0.2 --window 9".split()
GRID = "--lr 0.003,0.01 --eps 0.001 --lambda 0.01,0.1 --train-batch-size 10 --grid".split()
CACHE_GRID = "--theta 0,0.5 --lambda 0.1,0.3 --window 5,20 --grid".split()

pytestmark = pytest.mark.xdist_group("evaluate")  # they share trained models


@pytest.fixture(scope="module")
def trained(stream_data, tmp_path_factory):
    """Train a MoS whose words depend on those before them."""
    folder = tmp_path_factory.mktemp("trained")
    words = "--optimizer adam --lr 0.03 --clip-norm 1 --max-epoch 3 --head-components 2".split()
    train_streams(stream_data, folder, *CERTAIN, *words, arch="awd_lstm_lm_mos")
    return last(folder)


@pytest.fixture
def call(trained, stream_data, tmp_path):
    """Return a function (command, *words) → the result, written to `tmp_path / out.json`."""
    where = [trained, stream_data, "--output", tmp_path / "out.json"]
    return lambda command, *words: highrank("evaluate", command, *where, *words)


def record(folder):
    return json.loads((folder / "out.json").read_text())


def test_without_a_step_both_equal_eval_lm(call, trained, stream_data, tmp_path):
    words = [stream_data, "--path", trained, "--gen-subset", "test"]
    output = run("eval-lm", *words, "--task", "bptt_language_modeling").output
    bits = float(re.search(r"Loss \(base 2\): ([\d.]+)", output)[1])
    for command, words in (("dynamic", [*STEP, "--lr", 0]), ("cache", CACHE)):
        assert call(command, *words, "--lambda", 0).exit_code == 0
        found = record(tmp_path)
        assert f"Evaluated {found['tokens']} tokens" in output
        assert found["metrics"]["nll"] / math.log(2) == pytest.approx(bits, abs=1e-4)
        assert found["metrics"]["perplexity"] == pytest.approx(2**bits, rel=1e-4)


@pytest.mark.parametrize(("command", "words"), [("dynamic", GRID), ("cache", CACHE_GRID)])
def test_the_best_point_on_valid_is_used_on_test(command, words, call, tmp_path):
    done = call(command, *words, "--grid-tokens", 40)
    assert done.exit_code == 0, done.output
    found = record(tmp_path)
    points = found["grid"]["points"]
    assert len(points) == (4 if command == "dynamic" else 8)
    assert all(point["tokens"] == 40 for point in points)
    assert len({point["perplexity"] for point in points}) == len(points)
    best = min(points, key=lambda point: point["perplexity"])
    assert {name: best[name] for name in found["point"]} == found["point"]
    assert found["tokens"] > 40
    single = [word for name, value in found["point"].items() for word in (f"--{name}", value)]
    streams = ["--train-batch-size", 10] if command == "dynamic" else []
    assert call(command, *single, *streams).exit_code == 0
    assert record(tmp_path)["metrics"] == found["metrics"]


class Killed(BaseException):
    """Stand for a signal right after the file was written."""


@pytest.mark.parametrize(
    ("command", "words", "kills"),
    [("dynamic", GRID, [3, 11, 20, 17, 9]), ("cache", CACHE_GRID, [2, 5, 4, 8])],
)
def test_a_killed_evaluation_resumes_with_the_same_result_and_options(
    command, words, kills, call, tmp_path, monkeypatch
):
    monkeypatch.setattr(adaptive_evaluation.CacheEvaluator, "length", 7)
    words = [*words, "--grid-tokens", 60, "--save-seconds", 0]
    assert call(command, *words).exit_code == 0
    want = record(tmp_path)
    (tmp_path / "out.json").unlink()
    save = SavedProgress.save
    left = []

    def save_and_die(progress):
        save(progress)
        left[0] -= 1
        if not left[0]:
            raise Killed

    monkeypatch.setattr(SavedProgress, "save", save_and_die)
    for updates in kills:
        left[:] = [updates]
        with pytest.raises(Killed):
            call(command, *words)
        assert not (tmp_path / "out.json").exists()
    left[:] = [10**9]
    if command == "dynamic":
        done = call(command, *words, "--lr", 0.5, "--bptt", 4)
        said = "out.json.state is the progress of another evaluation (--"
        assert done.exit_code == 2 and said in done.output
        assert "--lr: [0.003, 0.01] there, [0.5]" in done.output
        assert "--bptt: 5 there, 4 now" in done.output
    assert call(command, *words).exit_code == 0
    assert left[0] < 10**9  # it had work to do
    got = record(tmp_path)
    assert all(got[name] == want[name] for name in ("metrics", "grid", "point"))


def test_the_record_says_what_was_done_and_progress_is_saved_next_to_the_checkpoint(
    call, trained, stream_data, tmp_path, monkeypatch
):
    def see(progress):
        states.append(progress.path)
        save(progress)

    states, save = [], SavedProgress.save
    monkeypatch.setattr(SavedProgress, "save", see)
    checkpoint = tmp_path / "checkpoint_best.pt"
    checkpoint.write_bytes(trained.read_bytes())
    words = [*STEP, "--split", "valid"]
    done = highrank("evaluate", "dynamic", checkpoint, stream_data, *words, "--save-seconds", 0)
    assert done.exit_code == 0, done.output
    call("dynamic", *words)
    found = record(tmp_path)
    assert f"over {found['tokens']} tokens" in done.output
    assert states[0] == tmp_path / "checkpoint_best.dynamic.state"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint_best.pt", "out.json"]
    assert found["point"] == {"lr": 0.01, "eps": 0.001, "lambda": 0.01}
    assert found["signature"] == f"split:valid|tokens:{found['tokens']}|eval:dynamic"
    assert found["grid"] is None and found["checkpoint"]["arch"] == "awd_lstm_lm_mos"


def test_a_diverging_point_does_not_end_the_search(call, tmp_path):
    words = ["--lr", "1e30,0.01", "--grid", "--grid-tokens", 30]
    done = call("dynamic", *STEP, *words)
    assert done.exit_code == 0, done.output
    found = record(tmp_path)
    lost, sound = found["grid"]["points"]
    assert lost["perplexity"] is None and "lower --lr" in lost["problem"]
    assert sound["perplexity"] and found["point"]["lr"] == 0.01


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("dynamic", [*STEP, "--lr", "1e30,1e31", "--grid"], "failed at every point"),
        ("dynamic", [*STEP, "--lr", "0.1,0.2"], "2 combinations of values: add --grid"),
        ("dynamic", [*STEP, "--lambda", "1.5"], "--lambda must lie in [0, 1], got 1.5"),
        ("dynamic", [*STEP, "--eps", "0"], "--eps must be above 0, got 0"),
        ("cache", [*CACHE, "--lambda", "1"], "--lambda must lie in [0, 1), got 1.0"),
        ("cache", [*CACHE, "--window", "69"], "--window 69: test has 69 tokens and never fills"),
        ("cache", [*CACHE_GRID, "--grid-tokens", "20"], "--window 20: valid has 20 tokens and"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_invalid_values_are_refused(command, words, message, trained, stream_data, tmp_path):
    where = [trained, stream_data, "--output", tmp_path / "out.json"]
    refused(message, "evaluate", command, *where, *words)
    assert not (tmp_path / "out.json").exists()
