"""Record on which machines a training runs, and find those that no longer answer.

The processes note it when they meet, for the launcher of their machine. This module does not import
torch.
"""

import json
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from highrank_plugins.common import stop_request

_FILE = "peers"
_DISCARD_PORT = 9  # nothing listens there; a reachable machine refuses at once
_ANSWER_SECONDS = 3.0


def note(hosts: Sequence[str]) -> None:
    """Record the machine of each rank, if a launcher watches this process."""
    folder = os.environ.get(stop_request.DIRECTORY)
    if folder is not None and stop_request.LAUNCHED in os.environ:
        Path(folder, _FILE).write_text(json.dumps(list(hosts)), encoding="utf-8")


def is_noted(folder: Path) -> bool:
    """Whether the processes have met, and have noted their machines."""
    return (folder / _FILE).exists()


def lost(folder: Path) -> str:
    """Return the ranks on other machines that do not answer, in words; empty if all do."""
    ranks = _ranks(folder)
    return ", ".join(
        f"rank{'s' * (len(ranks[host]) > 1)} {' '.join(ranks[host])} on {host}"
        for host in silent(folder)
    )


def silent(folder: Path) -> list[str]:
    """Return the other machines that do not answer within some seconds."""
    hosts = list(_ranks(folder))
    with ThreadPoolExecutor(max(1, min(len(hosts), 64))) as pool:
        answers = list(pool.map(_answers, hosts))
    return [host for host, answer in zip(hosts, answers, strict=True) if not answer]


def _ranks(folder: Path) -> dict[str, list[str]]:
    """Return the ranks of each other machine."""
    hosts = json.loads((folder / _FILE).read_text(encoding="utf-8")) if is_noted(folder) else []
    ranks: dict[str, list[str]] = {}
    for rank, host in enumerate(hosts):
        if host != socket.gethostname():
            ranks.setdefault(host, []).append(str(rank))
    return ranks


@cache
def _address(host: str) -> str:
    """Return the address of a machine; kept, since a network that is lost resolves no names."""
    return socket.gethostbyname(host)


def _answers(host: str) -> bool:
    try:
        socket.create_connection((_address(host), _DISCARD_PORT), _ANSWER_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
