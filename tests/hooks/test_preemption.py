"""Requests to stop; whole training runs that are told to end are in tests/training/launch, too."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from fairseq import tasks

from highrank_plugins.common import stop_request
from highrank_plugins.hooks.metrics import METRICS
from highrank_plugins.hooks.trainer import HighrankTrainer
from tests.compat.conftest import train
from tests.fairseq_cli import run
from tests.training.launch.trainings import command
from tests.trainings import last, parameters, same

PACKAGE = Path(stop_request.__file__).parents[1]


def test_the_stock_command_saves_and_resumes(mt_data, tmp_path):
    (program, *stopped), whole = (
        [*command(mt_data, tmp_path / name), "--cpu"] for name in ("stopped", "whole")
    )
    training = subprocess.Popen(
        [Path(sys.executable).parent / program, *stopped, "--user-dir", PACKAGE],
        stdout=(tmp_path / "log").open("w"), stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while "num_updates=7," not in (tmp_path / "log").read_text():
        assert training.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    for number in (signal.SIGINT, signal.SIGTERM):
        training.send_signal(number)
    assert training.wait(20) == stop_request.REQUEUE
    said = (tmp_path / "log").read_text()
    assert "asked to stop: finishing" in said and "stopping after update" in said
    run("train", *stopped)
    run("train", *whole[1:])
    assert same(parameters(last(tmp_path / "stopped")), parameters(last(tmp_path / "whole")))


@pytest.mark.parametrize(
    ("number", "option"), [(signal.SIGUSR1, None), (signal.SIGHUP, "--no-save")]
)
def test_a_signal_while_data_are_loaded_is_a_request(data, tmp_path, monkeypatch, number, option):
    stock = tasks.setup_task

    def setup_task(*args, **kwargs):
        assert stop_request.listening()
        signal.raise_signal(number)
        return stock(*args, **kwargs)

    monkeypatch.setattr(tasks, "setup_task", setup_task)
    with pytest.raises(SystemExit) as ended:
        train(data, tmp_path, *([option] if option else []))
    assert ended.value.code == stop_request.REQUEUE
    assert last(tmp_path).exists() is (option is None)


def stopped(data, folder, monkeypatch, after: int, *words, **options) -> None:
    """Train until SIGTERM comes in an update, which is finished and saved."""
    stock = HighrankTrainer.train_step

    def train_step(self, *samples, **more):
        if self.get_num_updates() == after - 1:
            signal.raise_signal(signal.SIGTERM)
        return stock(self, *samples, **more)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(HighrankTrainer, "train_step", train_step)
        train(data, folder, *words, **options)
    assert ended.value.code == stop_request.REQUEUE


@pytest.mark.parametrize(("after", "name"), [(3, "_1_3"), (8, "1")])
def test_a_stopped_update_is_kept_without_a_last_checkpoint(
    data, tmp_path, monkeypatch, after, name
):
    options = {"batch_size": 8, "max_tokens": None, "max_update": 9, "dropout": 0.1}
    words = "--no-last-checkpoints --save-interval-updates 2 --disable-validation".split()
    stopped(data, tmp_path / "a", monkeypatch, after, *words, **options)
    assert (tmp_path / "a" / f"checkpoint{name}.pt").exists()
    resumed, whole = (train(data, tmp_path / name, words[-1], **options) for name in "ab")
    assert same(resumed["model"], whole["model"])


def test_a_stop_at_the_end_of_an_epoch_keeps_its_numbers(data, tmp_path, monkeypatch, caplog):
    options = {"batch_size": 8, "max_tokens": None, "max_update": 16}
    caplog.set_level("INFO")
    stopped(data, tmp_path, monkeypatch, 8, **options)
    train(data, tmp_path, **options)
    found = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    kinds = [(line["tag"], line["num_updates"]) for line in found if line["tag"] != "train_inner"]
    assert kinds == [("start", 0), ("valid", 8), ("train", 8), ("valid", 16), ("train", 16)]
    assert caplog.text.count("is done; about") == 1  # nothing is left after the second


def test_signals_are_handled_only_while_training_and_existing_handlers_are_kept(monkeypatch, capfd):
    def handlers():
        return [signal.getsignal(number) for number in stop_request.SIGNALS]

    before = handlers()
    assert before[0] == signal.SIG_DFL
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        assert stop_request.listening() and handlers() != before
        for expected in "asked to stop: finishing this update, then saving a checkpoint\n", "":
            signal.raise_signal(signal.SIGTERM)  # the second is the same request
            assert capfd.readouterr().err == expected
        assert stop_request.asked()
        monkeypatch.setattr(os, "getpid", lambda: -1)  # a process that loads data inherits this
        monkeypatch.setattr(stop_request, "_signalled_at", None)
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ""
        monkeypatch.undo()
    assert handlers() == before and not stop_request.listening() and not stop_request.asked()
    with stop_request.handlers_restored():
        signal.signal(signal.SIGTERM, print)
        stop_request.listen_unprepared()
        assert not stop_request.listening() and signal.getsignal(signal.SIGTERM) is print
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by nohup
        stop_request.handle(lambda *_: None, lambda: None)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("launched", [None, False, True])
def test_an_interrupt_is_a_request_with_a_signal_or_where_plain_torchrun_passes_it_on(
    monkeypatch, launched
):
    def send(*numbers):
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:  # to this thread: another one would take a signal to the process
            signal.pthread_kill(threading.get_ident(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # all at once

    monkeypatch.setattr(stop_request, "_INTERRUPT_DELAY", 0.01)
    if launched is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    if launched:
        monkeypatch.setenv(stop_request.LAUNCHED, "1")
    # a shell takes Python's handler away from jobs in the background
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        assert stop_request.listening()  # otherwise the interrupt would end pytest
        with nullcontext() if launched is False else pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop_request.asked() is (launched is False)
        send(signal.SIGINT, signal.SIGTERM)
        assert stop_request.asked()
        monkeypatch.setattr(stop_request, "SAME_REQUEST_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt):  # the second one
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, outside)
