"""Whoever writes to torchrun's store runs nothing on the machines of a training run."""

import os
import pickle
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_state

from highrank_plugins.common import stop_request
from highrank_plugins.training.launch import agent, cause
from highrank_plugins.training.launch.agent import StatePickle
from highrank_plugins.training.launch.torchrun import AGENT_MODULE
from tests.free_port import free_port


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


@pytest.mark.parametrize("module", [AGENT_MODULE, "torch.distributed.run"])
def test_a_hostile_state_in_the_store_runs_nothing(tmp_path, module):
    """The second agent is torch's own, so that the attack is known to work."""
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=5))
    import base64

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
    assert (tmp_path / "ran").exists() == (module != AGENT_MODULE), said
    if module == AGENT_MODULE:
        assert "another program has written to its port" in said


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (api.RendezvousTimeoutError(), "the launcher of another node has not come back within --"),
        (api.RendezvousConnectionError("c10d"), "the node where all meet (--rendezvous) is lost"),
        (api.RendezvousClosedError("closed"), "the nodes cannot meet again, since one of them has"),
    ],
)
def test_nodes_that_do_not_meet_again_end_with_one_line(error, message, tmp_path, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(agent.run, "main", fail)
    monkeypatch.setenv(stop_request.DIRECTORY, str(tmp_path))
    with pytest.raises(type(error)):
        agent.main()  # they have never met: the launcher knows what to say
    (tmp_path / "peers").write_text('["here", "there"]')
    with pytest.raises(SystemExit):
        agent.main()
    advice = cause.read(tmp_path).advise(tmp_path)
    assert advice.startswith(message)
    assert advice.endswith(
        "; start the same command again: it resumes from the last checkpoint. Do so on all nodes"
    )
