"""hooks/preemption.py; whole training runs that are told to end are in tests/training/launch."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils, tasks

from highrank_plugins.common import stop_request
from highrank_plugins.hooks.training_loop import leave_if_asked
from tests.compat.conftest import train
from tests.fairseq_cli import run
from tests.training.launch.trainings import command
from tests.trainings import last, parameters, same

PACKAGE = Path(stop_request.__file__).parents[1]


@pytest.mark.parametrize(
    ("listening", "asked", "is_saved", "saves"),
    [(True, True, False, 1), (True, True, True, 0), (True, False, False, 0),
     (False, True, False, 0)],
)  # fmt: skip
def test_a_process_that_is_asked_to_stop_saves_and_ends_with_code_75(
    monkeypatch, listening, asked, is_saved, saves
):
    saved, cfg = [], SimpleNamespace(checkpoint=SimpleNamespace(no_save=False))
    trainer = SimpleNamespace(data_parallel_world_size=1, get_num_updates=lambda: 7)
    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", lambda *given: saved.append(given))
    monkeypatch.setattr(stop_request, "listening", lambda: listening)
    monkeypatch.setattr(stop_request, "asked", lambda: asked)
    monkeypatch.delenv(stop_request.DIRECTORY, raising=False)
    with pytest.raises(SystemExit) if listening and asked else nullcontext() as ended:
        leave_if_asked(cfg, trainer, "epoch", is_saved)
    assert ended is None or ended.value.code == stop_request.REQUEUE
    assert saved == [(cfg.checkpoint, trainer, "epoch", None)] * saves


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
    assert "stopping after update" in (tmp_path / "log").read_text()
    run("train", *stopped)
    run("train", *whole[1:])
    assert same(parameters(last(tmp_path / "stopped")), parameters(last(tmp_path / "whole")))


def test_a_request_is_answered_at_once(monkeypatch, capfd):
    with stop_request.handlers_restored():
        stop_request.listen()
        said = "asked to stop: finishing this update, then saving a checkpoint\n"
        for expected in said, "":  # the second is the same request
            signal.raise_signal(signal.SIGTERM)
            assert capfd.readouterr().err == expected
        monkeypatch.setattr(os, "getpid", lambda: -1)  # a process that loads data inherits this
        monkeypatch.setattr(stop_request, "_signalled_at", None)
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ""
        monkeypatch.undo()


def test_a_signal_while_data_are_loaded_is_a_request(data, tmp_path, monkeypatch):
    stock = tasks.setup_task

    def setup_task(*args, **kwargs):
        assert stop_request.listening()
        signal.raise_signal(signal.SIGTERM)
        return stock(*args, **kwargs)

    monkeypatch.setattr(tasks, "setup_task", setup_task)
    with pytest.raises(SystemExit) as ended:
        train(data, tmp_path)
    assert ended.value.code == stop_request.REQUEUE
    assert last(tmp_path).exists()


def test_signals_are_handled_only_while_training_and_existing_handlers_are_kept():
    def handlers():
        return [signal.getsignal(number) for number in stop_request.SIGNALS]

    before = handlers()
    assert set(stop_request.SIGNALS) == {signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}
    assert before[0] == signal.SIG_DFL
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        assert stop_request.listening() and handlers() != before
        signal.raise_signal(signal.SIGTERM)
        assert stop_request.asked()
    assert handlers() == before and not stop_request.listening() and not stop_request.asked()
    with stop_request.handlers_restored():
        signal.signal(signal.SIGTERM, print)
        stop_request.listen_unprepared()
        assert not stop_request.listening() and signal.getsignal(signal.SIGTERM) is print
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by nohup
        stop_request.handle(lambda *_: None, lambda: None)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.fixture
def interruptible():
    """Give SIGINT Python's handler, which a shell takes away from jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_together_with_a_signal_is_one_request(monkeypatch, interruptible):
    def send(*numbers):
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:  # to this thread: another one would take a signal to the process
            signal.pthread_kill(threading.get_ident(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # all at once

    monkeypatch.setattr(stop_request, "_INTERRUPT_DELAY", 0.01)
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert not stop_request.asked()
        send(signal.SIGINT, signal.SIGTERM)
        assert stop_request.asked()
        monkeypatch.setattr(stop_request, "SAME_REQUEST_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("launched", [False, True])
def test_an_interrupt_that_plain_torchrun_passes_on_is_a_request(
    monkeypatch, interruptible, launched
):
    monkeypatch.setattr(stop_request, "_INTERRUPT_DELAY", 0.01)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    if launched:
        monkeypatch.setenv(stop_request.LAUNCHED, "1")
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        assert stop_request.listening()  # otherwise the interrupt would end pytest
        with pytest.raises(KeyboardInterrupt) if launched else nullcontext():
            signal.raise_signal(signal.SIGINT)
        assert stop_request.asked() is not launched
        monkeypatch.setattr(stop_request, "SAME_REQUEST_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt):  # the second one
            signal.raise_signal(signal.SIGINT)
