"""A port for processes of a test that meet on this machine."""

import socket


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_address() -> str:
    """Return an address for torch's process group."""
    return f"tcp://127.0.0.1:{free_port()}"
