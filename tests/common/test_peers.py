"""Which machines of a training run no longer answer."""

import socket

import pytest

from highrank_plugins.common import peers, stop_request


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(stop_request.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(stop_request.LAUNCHED, "1")
    return tmp_path


def test_machines_that_do_not_answer_are_named_with_their_ranks(folder):
    here, gone = socket.gethostname(), "no-such-machine.invalid"
    peers.note([here, here, gone, gone, "localhost", "lost.invalid"])
    assert peers.lost(folder) == f"ranks 2 3 on {gone}, rank 5 on lost.invalid"


def test_one_machine_has_no_peers(folder):
    assert peers.lost(folder) == ""
    peers.note([socket.gethostname()] * 2)
    assert peers.lost(folder) == ""


def test_peers_are_noted_only_under_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv(stop_request.DIRECTORY, str(tmp_path))
    peers.note(["a"])
    assert list(tmp_path.iterdir()) == []
