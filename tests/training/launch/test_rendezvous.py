"""Nodes that cannot meet are told why, in time."""

import socket
import time
from datetime import timedelta
from threading import Timer

import pytest
from torch.distributed import TCPStore

from highrank_plugins.training.launch import rendezvous
from highrank_plugins.training.launch.plan import Plan, split_address
from highrank_plugins.training.launch.rendezvous import check_rendezvous
from tests.free_port import free_port

# RFC 5737: addresses that no machine has
NOWHERE = "192.0.2.1"


def address(port: int) -> str:
    return f"127.0.0.1:{port}"


def store_at(port: int) -> TCPStore:
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=5))
    return store


@pytest.fixture
def occupied(monkeypatch):
    """Return a port of another program, which accepts and says nothing."""
    monkeypatch.setattr(rendezvous, "STARTING_SECONDS", 4)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_free_port_is_accepted():
    check_rendezvous(address(free_port()), 1, "ours")


def test_an_occupied_port_is_named(occupied):
    began = time.monotonic()
    with pytest.raises(ValueError, match=f":{occupied}: another program uses that port"):
        check_rendezvous(address(occupied), 60, "ours")
    assert time.monotonic() - began < 20


def test_the_store_of_another_node_is_accepted():
    port = free_port()
    stores = [store_at(port)]
    check_rendezvous(address(port), 5, "ours")
    assert stores  # it serves as long as somebody holds it


def test_the_store_of_another_run_is_refused():
    port = free_port()
    stores = [store_at(port)]
    for _ in range(2):  # nodes of the training run that came first
        check_rendezvous(address(port), 5, "first")
    with pytest.raises(ValueError, match=r"uses that port \(a run of another command\)"):
        check_rendezvous(address(port), 5, "second")
    assert stores


def test_a_forbidden_port_is_not_reported_as_taken(monkeypatch):
    monkeypatch.setattr(rendezvous, "_bind", lambda place: rendezvous.errno.EACCES)
    with pytest.raises(ValueError, match=r":80: Permission denied; choose another port"):
        check_rendezvous("127.0.0.1:80", 5, "ours")


def test_an_unreachable_node_is_named_in_time():
    began = time.monotonic()
    with pytest.raises(ValueError, match=rf"{NOWHERE}:29500: no answer within 2 s"):
        check_rendezvous(f"{NOWHERE}:29500", 2, "ours")
    assert 1 < time.monotonic() - began < 10


def test_a_node_that_arrives_later_is_waited_for(monkeypatch):
    port, stores = free_port(), []
    # the address is another machine's
    monkeypatch.setattr(rendezvous, "_bind", lambda place: rendezvous.errno.EADDRNOTAVAIL)
    timer = Timer(0.7, lambda: stores.append(store_at(port)))
    timer.start()
    check_rendezvous(address(port), 10, "ours")
    timer.join()


def test_another_program_on_another_node_is_reported(occupied, monkeypatch):
    monkeypatch.setattr(rendezvous, "_bind", lambda place: rendezvous.errno.EADDRNOTAVAIL)
    with pytest.raises(ValueError, match=f":{occupied}: another program uses that port"):
        check_rendezvous(address(occupied), 60, "ours")


def test_an_unknown_host_is_named():
    with pytest.raises(ValueError, match=r"no-such-host\.invalid:29500: unknown host"):
        check_rendezvous("no-such-host.invalid:29500", 5, "ours")


@pytest.mark.parametrize("text", ["node1", "node1:", ":29500", "node1:99999", "node1:port"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        split_address(text)


def test_several_nodes_must_know_where_to_meet(tmp_path):
    plan = Plan(("fairseq-train", "data"), tmp_path, nodes=2)
    with pytest.raises(ValueError, match="--rendezvous HOST:PORT"):
        plan.check_meeting()
