"""Meet other nodes by torchrun, whose agent runs here: `python -m …launch.torchrun`.

The nodes of a training run meet in a store that accepts messages from anybody who reaches its port,
and torch unpickles the state it finds there. A pickle can name any function to call. The agent
admits the classes of torch's own state and nothing else.
"""

import errno
import io
import os
import pickle
import shlex
import socket
import subprocess
import sys
import time
from typing import Any

from highrank_plugins.common.processes import python
from highrank_plugins.training.launch.plan import Plan, environment, rank_words, split_address
from highrank_plugins.training.launch.rank import Place, distributed_flags

MODULE = "highrank_plugins.training.launch.torchrun"
STARTING_SECONDS = 60  # seconds to import torch on a busy machine
STRANGER = 3  # exit code: the store serves another training run
RETRY_SECONDS = 0.5
LOOPBACK = "127.0.0.1"
# --dry-run prints this example; a start makes a temporary folder of its own
STORE = "file:///tmp/highrank-launch-XXXXXXXX/store-0"
_STATE = {
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous": {"_RendezvousState", "_NodeDesc"},
    "datetime": {"datetime", "timedelta", "timezone"},
}


def torchrun_words(plan: Plan) -> list[str]:
    """Return `torchrun … rank --world-size N … -- fairseq-train …`, which each node runs.

    SIGTERM, SIGUSR1 and SIGHUP are not among its signals: it would end all processes within 30
    seconds. They are ignored when it starts, and the launcher asks the processes itself.
    """
    address = str(plan.rendezvous)
    words = [
        *python("-m", MODULE),
        *("--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", address),
        *("--rdzv-conf", f"join_timeout={plan.timeout},read_timeout={plan.timeout}"),
        *("--max-restarts", str(plan.max_restarts)),
        *("--signals-to-handle", "SIGINT,SIGQUIT"),
    ]
    if split_address(address)[0] in (LOOPBACK, "localhost"):
        # within a container, the machine's name often does not resolve
        words += ["--local-addr", LOOPBACK]
    return [*words, "--no-python", *rank_words(plan)]


def describe(plan: Plan) -> str:
    """Return the environment, the line of torchrun if any, and what each process runs."""
    plan.check_meeting()
    variables = environment(plan)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    if plan.nodes == 1:
        lines = [
            f"# on this machine, where {STORE} stands for a file in a new private folder:",
            *(f"export {line}" for line in assignments),
        ]
    else:
        lines = [
            f"# on each of {plan.nodes} nodes:",
            " \\\n    ".join([*assignments, shlex.join(torchrun_words(plan))]),
        ]
    size = plan.world_size
    lines += ["", f"# {size} processes, whose output goes to {plan.log_dir}/rank<N>.log:"]
    for rank in range(size):
        node, local_rank = divmod(rank, plan.per_node)
        place = Place(rank, size, local_rank, "env://" if plan.nodes > 1 else STORE)
        flags = distributed_flags(place, plan.per_node if plan.gpus else None, plan.command)
        threads = f"CPU threads: {variables['OMP_NUM_THREADS']}"
        device = f"GPU {local_rank}" if plan.gpus else threads
        lines += [f"# rank {rank}: node {node}, {device}", shlex.join([*plan.command, *flags])]
    return "\n".join(lines)


def check_rendezvous(address: str, timeout: float, run: str) -> None:
    """Find out whether this machine has the address HOST:PORT, and whether nodes can meet there.

    A store belongs to the first run that asks there: it ends with that run, and would end others.
    """
    host, port = split_address(address)
    try:
        place = (socket.gethostbyname(host), port)
    except socket.gaierror as error:
        raise ValueError(f"--rendezvous {address}: unknown host ({error.strerror})") from None
    problem = _bind(place)
    if problem == errno.EADDRNOTAVAIL:
        _wait_for(place, address, timeout)
    elif problem not in (None, errno.EADDRINUSE):
        raise ValueError(f"--rendezvous {address}: {os.strerror(problem)}; choose another port")
    if problem is not None and (found := _stranger(host, port, run)):
        raise ValueError(
            f"--rendezvous {address}: another program uses that port ({found}); choose "
            f"another port, the same on all nodes (on {host}, ss -ltnp 'sport = :{port}' "
            "shows the program)"
        )


def _bind(place: tuple[str, int]) -> int | None:
    """Return None if this machine has that address, free; else the error's number."""
    with socket.socket() as probe:
        # as torch's server does, so that lingering connections are no obstacle
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno
    return None


def _wait_for(place: tuple[str, int], address: str, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(place, timeout=max(end - time.monotonic(), 0.1)).close()
            return
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS >= end:
                reason = (error.strerror or str(error)).lower()
                raise ValueError(
                    f"--rendezvous {address}: no answer within {timeout:.0f} s ({reason}): start "
                    "the same command on that node too, and check that no firewall blocks the "
                    "port; --rendezvous-timeout sets a longer wait"
                ) from None
        time.sleep(RETRY_SECONDS)


def _stranger(host: str, port: int, run: str) -> str:
    """Return nothing if torch's store of this run answers there, else what answers instead."""
    code = (
        "import sys, torch.distributed as d; store = d.TCPStore(sys.argv[1], int(sys.argv[2])); "
        "owner = store.compare_set('highrank', '', sys.argv[3]).decode(); "
        f"sys.exit(0 if owner == sys.argv[3] else {STRANGER})"
    )
    words = python("-c", code, host, str(port), run)
    try:
        # a separate process, because the store ignores its time limit while it waits for a reply
        asked = subprocess.run(words, capture_output=True, text=True, timeout=STARTING_SECONDS)
    except subprocess.TimeoutExpired:
        return f"nothing that answers as torch's store within {STARTING_SECONDS} s"
    if asked.returncode == STRANGER:
        return "a run of another command"
    return (asked.stderr.strip().splitlines() or ["no store"])[-1] if asked.returncode else ""


class StatePickle:
    """Replace the module `pickle` where torch reads the state of a rendezvous."""

    PickleError = pickle.PickleError
    dumps = staticmethod(pickle.dumps)
    loads = staticmethod(lambda data: _StateUnpickler(io.BytesIO(data)).load())


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _STATE.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the state of the rendezvous names {module}.{name}: another program has written to "
            "its port. Train on a network that you trust (see docs/howto/clusters.md)"
        )


def main() -> None:
    """Run torchrun's agent."""
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import api, dynamic_rendezvous

    vars(dynamic_rendezvous)["pickle"] = StatePickle
    try:
        run.main()
    except api.RendezvousError as error:
        why = error.__cause__ or str(error) or type(error).__name__
        sys.exit(
            f"the nodes cannot meet; a launcher, its machine or the network may be lost: {why}"
        )


if __name__ == "__main__":
    main()
