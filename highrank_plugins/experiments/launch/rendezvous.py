"""Whether nodes can meet at an address, said before torchrun waits for it."""

import errno
import socket
import subprocess
import sys
import time

from highrank_plugins.experiments.launch.plan import split_address

STORE_SECONDS = 30  # to import torch on a busy machine, and to ask
RETRY_SECONDS = 0.5


def check_rendezvous(address: str, nodes: int, timeout: float) -> None:
    """Find out which side of HOST:PORT this machine is on, and whether that can work.

    Raises:
        ValueError: the host is unknown, its port is taken by another program, which it may take
            STORE_SECONDS to find out, or nobody has answered there after `timeout` seconds.
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
    if problem != errno.EADDRINUSE or nodes == 1 or not _is_store(host, port):
        raise ValueError(
            f"--rendezvous {address}: another program uses that port; choose another one, on all "
            f"nodes the same (on {host}, ss -ltnp 'sport = :{port}' shows who it is)"
        )


def _bind(place: tuple[str, int]) -> int | None:
    """None if this machine has that address, free; else the error's number."""
    with socket.socket() as probe:
        # as torch's server does: connections of an earlier one that linger are no obstacle
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
                    f"--rendezvous {address}: no answer within {timeout:.0f} s ({reason.lower()}): "
                    "start the same command on that node too, and see that no firewall closes the "
                    "port; --rendezvous-timeout waits longer"
                ) from None
        time.sleep(RETRY_SECONDS)


def _is_store(host: str, port: int) -> bool:
    """Whether torch's store answers there, as on the second of two "nodes" on one machine."""
    code = "import sys, torch.distributed as d; d.TCPStore(sys.argv[1], int(sys.argv[2]))"
    try:
        # in a process of its own: the store's time limit does not hold while it waits for a hello
        asked = subprocess.run(
            [sys.executable, "-c", code, host, str(port)],
            capture_output=True,
            timeout=STORE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
