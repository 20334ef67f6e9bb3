"""Nodes that cannot meet are told why, in time; whoever writes to their store runs nothing."""

import base64
import errno
import os
import pickle
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_state

from highrank_plugins.training.launch import torchrun
from highrank_plugins.training.launch.plan import Plan
from highrank_plugins.training.launch.torchrun import MODULE, StatePickle, check_rendezvous
from tests.free_port import free_port

# RFC 5737: addresses that no machine has
NOWHERE = "192.0.2.1"


def address(port: int) -> str:
    return f"127.0.0.1:{port}"


def store_at(port: int) -> TCPStore:
    """Return a store, which serves as long as somebody holds it."""
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=5))
    return store


@pytest.fixture
def occupied(monkeypatch):
    """Return a port of another program, which accepts and says nothing."""
    monkeypatch.setattr(torchrun, "STARTING_SECONDS", 4)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


ELSEWHERE = errno.EADDRNOTAVAIL  # the address is another machine's


@pytest.mark.parametrize(
    ("place", "bound", "message"),
    [
        ("127.0.0.1:{}", None, "another program uses that port"),
        ("127.0.0.1:{}", ELSEWHERE, "another program uses that port"),
        ("127.0.0.1:80", errno.EACCES, "Permission denied; choose another port"),
        (f"{NOWHERE}:29500", None, "no answer within 2 s"),
        ("no-such-host.invalid:29500", None, "unknown host"),
    ],
)
def test_a_place_where_nobody_can_meet_is_named_in_time(
    place, bound, message, occupied, monkeypatch
):
    if bound is not None:
        monkeypatch.setattr(torchrun, "_bind", lambda place: bound)
    place, began = place.format(occupied), time.monotonic()
    with pytest.raises(ValueError, match=f"{place}: {message}"):
        check_rendezvous(place, 2 if NOWHERE in place else 60, "ours")
    assert time.monotonic() - began < 20


def test_the_store_of_another_run_is_refused_and_a_node_that_arrives_later_waited_for(monkeypatch):
    stores, ports = [], [free_port(), free_port()]
    check_rendezvous(address(ports[0]), 1, "ours")
    stores.append(store_at(ports[0]))
    for _ in range(2):  # nodes of the training run that came first
        check_rendezvous(address(ports[0]), 5, "first")
    with pytest.raises(ValueError, match=r"uses that port \(a run of another command\)"):
        check_rendezvous(address(ports[0]), 5, "second")
    monkeypatch.setattr(torchrun, "_bind", lambda place: ELSEWHERE)
    timer = Timer(0.7, lambda: stores.append(store_at(ports[1])))
    timer.start()
    check_rendezvous(address(ports[1]), 10, "ours")
    timer.join()


def test_several_nodes_must_know_where_to_meet(tmp_path):
    for place in (None, "node1", "node1:", ":29500", "node1:99999", "node1:x"):
        message = "expected HOST:PORT" if place else "--rendezvous HOST:PORT"
        with pytest.raises(ValueError, match=message):
            Plan(("fairseq-train",), tmp_path, nodes=2, rendezvous=place).check_meeting()
    plan = Plan(("fairseq-train", "a"), Path("logs"), nodes=2, rendezvous="a:1")
    assert plan.run_id == replace(plan, log_dir=tmp_path).run_id
    assert plan.run_id != replace(plan, command=("fairseq-train", "b")).run_id


class Hostile:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_torchs_own_state_is_read_back_and_other_pickles_are_refused(tmp_path):
    state = torch_state._RendezvousState()
    node = torch_state._NodeDesc("here", 12, 0)
    state.participants[node] = 0
    state.last_heartbeats[node] = state.deadline = datetime.now(UTC)
    got = StatePickle.loads(pickle.dumps(state))
    assert vars(got) == vars(state)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Hostile(tmp_path / "ran"), protocol)
        with pytest.raises(pickle.PickleError, match=r"names posix.mkdir: another program"):
            StatePickle.loads(data)
    assert not (tmp_path / "ran").exists()


def test_a_hostile_state_in_the_store_runs_nothing(tmp_path):
    port = free_port()
    store = store_at(port)
    data = base64.b64encode(pickle.dumps(Hostile(tmp_path / "ran"))).decode()
    store.set("torch.rendezvous.run", data)
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=false"]
    agent = subprocess.Popen(
        [sys.executable, "-m", MODULE, *words, "--no-python", "true"],
        env=os.environ | {"PET_RDZV_ID": "run"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while agent.poll() is None and not (tmp_path / "ran").exists() and time.monotonic() < end:
        time.sleep(0.1)
    agent.kill()
    _, said = agent.communicate()
    assert not (tmp_path / "ran").exists()
    assert "another program has written to its port" in said
