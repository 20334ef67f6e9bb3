"""Nodes that cannot meet are told why, in time; whoever writes to their store runs nothing."""

import base64
import os
import pickle
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer

import pytest
from torch.distributed import TCPStore, run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_state

from highrank_plugins.common import stop_request
from highrank_plugins.training.launch import supervise, torchrun
from highrank_plugins.training.launch.plan import Plan, split_address
from highrank_plugins.training.launch.torchrun import MODULE, StatePickle, check_rendezvous
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
    monkeypatch.setattr(torchrun, "STARTING_SECONDS", 4)
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
    monkeypatch.setattr(torchrun, "_bind", lambda place: torchrun.errno.EACCES)
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
    monkeypatch.setattr(torchrun, "_bind", lambda place: torchrun.errno.EADDRNOTAVAIL)
    timer = Timer(0.7, lambda: stores.append(store_at(port)))
    timer.start()
    check_rendezvous(address(port), 10, "ours")
    timer.join()


def test_another_program_on_another_node_is_reported(occupied, monkeypatch):
    monkeypatch.setattr(torchrun, "_bind", lambda place: torchrun.errno.EADDRNOTAVAIL)
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


class Hostile:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_torchs_own_state_is_read_back():
    state = torch_state._RendezvousState()
    node = torch_state._NodeDesc("here", 12, 0)
    state.participants[node] = 0
    state.last_heartbeats[node] = state.deadline = datetime.now(UTC)
    got = StatePickle.loads(pickle.dumps(state))
    assert vars(got) == vars(state)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_other_pickles_are_refused(tmp_path, protocol):
    data = pickle.dumps(Hostile(tmp_path / "ran"), protocol)
    with pytest.raises(pickle.PickleError, match=r"names posix.mkdir: another program"):
        StatePickle.loads(data)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("module", [MODULE, "torch.distributed.run"])
def test_a_hostile_state_in_the_store_runs_nothing(tmp_path, module):
    """The second agent is torch's own, so that the attack is known to work."""
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=5))
    data = base64.b64encode(pickle.dumps(Hostile(tmp_path / "ran"))).decode()
    store.set("torch.rendezvous.run", data)
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=false"]
    agent = subprocess.Popen(
        [sys.executable, "-m", module, *words, "--no-python", "true"],
        env=os.environ | {"PET_RDZV_ID": "run"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while agent.poll() is None and not (tmp_path / "ran").exists() and time.monotonic() < end:
        time.sleep(0.1)
    agent.kill()
    _, said = agent.communicate()
    assert (tmp_path / "ran").exists() == (module != MODULE), said
    if module == MODULE:
        assert "another program has written to its port" in said


AGAIN = "; start the same command again: it resumes from the last checkpoint. Do so on all nodes"


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Return a function that ends the agent with an error, and returns the launcher's advice."""
    monkeypatch.setenv(stop_request.DIRECTORY, str(tmp_path))

    def ends(error):
        monkeypatch.setattr(run, "main", lambda: (_ for _ in ()).throw(error))
        with pytest.raises((SystemExit, type(error))) as raised:
            torchrun.main()
        plan = Plan(("fairseq-train",), Path("logs"), nodes=2, rendezvous="a:1")
        return raised.type, supervise._advice(plan, tmp_path)

    return ends


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (api.RendezvousTimeoutError(), "the launcher of another node has not come back within --"),
        (api.RendezvousConnectionError("c10d"), "the node where all meet (--rendezvous) is lost"),
        (api.RendezvousClosedError("closed"), "the nodes cannot meet again, since one of them has"),
    ],
)
def test_nodes_that_do_not_meet_again_end_with_one_line(error, message, ends, tmp_path):
    kind, advice = ends(error)
    assert kind is type(error) and "all 2 nodes must reach a:1 within 300 s" in advice
    (tmp_path / "started").touch()
    kind, advice = ends(error)
    assert kind is SystemExit and advice.startswith(message) and advice.endswith(AGAIN)


def test_the_process_that_failed_first_is_named(ends, tmp_path):
    failure = ProcessFailure(local_rank=0, pid=9, exitcode=3, error_file="")
    _, advice = ends(ChildFailedError("rank", {2: failure}))
    assert advice == "rank 2 failed with exit code 3; the reason is at the end of logs/rank2.log"
