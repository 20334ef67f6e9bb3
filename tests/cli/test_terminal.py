"""Tables in a terminal, and in a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIGHRANK = [sys.executable, "-m", "highrank_plugins.cli"]
COMMANDS = [
    ["compare", "--runs", "docs/records/ptb_small/mos-1.json"],
    ["compare", *(f"docs/records/ptb_small/{name}.json"
                  for name in ("mos-1", "mos-2", "softmax-1", "softmax-2"))],
    ["bench", "table", "docs/benchmarks/cpu_mos.csv"],
    ["list", "heads"],
]  # fmt: skip


def in_terminal(command: list[str], columns: int) -> list[str]:
    """Return the lines that a terminal of the given width shows, without colour codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {n: v for n, v in os.environ.items() if n not in ("COLUMNS", "LINES")}
    run = subprocess.Popen(
        [*HIGHRANK, *command], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd=ROOT,
        env=environment | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    text = b""
    with open(ours, "rb", buffering=0) as terminal, suppress(OSError):  # Linux says so at the end
        while read := terminal.read(1 << 16):
            text += read
    assert run.wait() == 0
    return re.sub("\x1b.*?m", "", text.decode()).replace("\r", "").split("\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_terminal_shows_tables_without_markdown_and_within_its_width(command):
    columns = 120 if command[0] == "compare" else 80
    lines = in_terminal(command, columns)
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line.startswith(("|", "#"))]
    assert len(lines) > 4
