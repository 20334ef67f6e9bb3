"""Check that nodes can meet at an address, before torchrun waits for it."""

import errno
import os
import socket
import subprocess
import time

from highrank_plugins.common.processes import python
from highrank_plugins.training.launch.plan import STARTING_SECONDS, split_address

STRANGER = 3  # exit code: the store serves another training run
RETRY_SECONDS = 0.5


def check_rendezvous(address: str, timeout: float, run: str) -> None:
    """Find out whether this machine has the address HOST:PORT, and whether nodes can meet there.

    Args:
        run: the run's name. A store belongs to the first run that asks there: it ends
            with that run, and would end others.
    """
    host, port = split_address(address)
    try:
        place = (socket.gethostbyname(host), port)
    except socket.gaierror as error:
        raise ValueError(f"--rendezvous {address}: unknown host ({error.strerror})") from None
    problem = _bind(place)
    if problem is None:
        return
    if problem == errno.EADDRNOTAVAIL:
        _wait_for(place, address, timeout)
        problem = errno.EADDRINUSE
    if problem != errno.EADDRINUSE:
        raise ValueError(f"--rendezvous {address}: {os.strerror(problem)}; choose another port")
    found = _stranger(host, port, run)
    if found is not None:
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
        left = end - time.monotonic()
        try:
            socket.create_connection(place, timeout=max(left, 0.1)).close()
            return
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS >= end:
                reason = error.strerror or str(error)
                raise ValueError(
                    f"--rendezvous {address}: no answer within {timeout:.0f} s "
                    f"({reason.lower()}): start the same command on that node too, and check "
                    "that no firewall blocks the port; --rendezvous-timeout sets a longer "
                    "wait"
                ) from None
        time.sleep(RETRY_SECONDS)


def _stranger(host: str, port: int, run: str) -> str | None:
    """Return None if torch's store of this run answers there, else what answers instead."""
    code = (
        "import sys, torch.distributed as d; store = d.TCPStore(sys.argv[1], int(sys.argv[2])); "
        "owner = store.compare_set('highrank', '', sys.argv[3]).decode(); "
        f"sys.exit(0 if owner == sys.argv[3] else {STRANGER})"
    )
    try:
        # a separate process, because the store ignores its time limit while it waits for a reply
        asked = subprocess.run(
            python("-c", code, host, str(port), run),
            capture_output=True,
            text=True,
            timeout=STARTING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"nothing that answers as torch's store within {STARTING_SECONDS} s"
    if asked.returncode == STRANGER:
        return "a run of another command"
    return (asked.stderr.strip().splitlines() or ["no store"])[-1] if asked.returncode else None
