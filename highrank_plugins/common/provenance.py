"""Record what computed a number: versions, revision, hardware and command line."""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import highrank_plugins
from highrank_plugins.common.processes import memory_gib, usable_cores

PACKAGES = ("torch", "ve-fairseq", "numpy", "sacrebleu", "sentencepiece")
# layer → what computed its last loss in training; a loss writes it
ran: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def typed_command() -> str:
    """Return the `highrank` command line of this process, quoted for a shell."""
    return shlex.join(["highrank", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the libraries that compute."""
    return {
        "python": platform.python_version(),
        "highrank_plugins": highrank_plugins.__version__,
        **{name: version(name) for name in PACKAGES},
    }


def git_state() -> dict[str, Any] | None:
    """Return the revision of the clone and whether its files differ; None if git cannot say it."""
    root = Path(highrank_plugins.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        revision = _git(root, "rev-parse", "--verify", "HEAD")
        # files that git does not track do not change a result
        changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None  # no git here, or it does not read the clone of another user
    return {"revision": revision, "modified": bool(changes)}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def hardware() -> dict[str, Any]:
    """Return the processor, the cores this process may use, memory, and GPUs by name."""
    import torch

    return {
        **_processor(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def conditions() -> dict[str, Any]:
    """Return versions, the state of the clone and the machine, as records hold them."""
    return {"versions": versions(), "git": git_state(), "hardware": hardware()}


def machine_kind(found: Mapping[str, Any]) -> str:
    """Return what makes equal seeds give equal numbers, of `hardware`; empty if it is unknown."""
    if "family" not in found:
        return ""
    numbers = " ".join(f"{name} {found[name]}" for name in _NUMBERS.values() if name in found)
    flags = " ".join(found.get("flags", []))
    return ", ".join(filter(None, (*found.get("gpus", []), found.get("processor"), numbers, flags)))


# names in /proc/cpuinfo, of x86 and of ARM → ours; they tell processors of one name apart, by which
# kernels are chosen, whose sums have another order
_NUMBERS = {
    "cpu family": "family", "model": "model", "stepping": "stepping",
    "CPU architecture": "family", "CPU part": "model", "CPU revision": "stepping",
}  # fmt: skip
_VECTOR = re.compile(r"(avx|amx|fma|f16c|sse4|asimd|sve|bf16|i8mm)")


def _processor() -> dict[str, Any]:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    pairs = [line.partition(":") for line in reversed(lines)]  # the first processor counts
    said = {name.strip(): value.strip() for name, _, value in pairs}
    flags = said.get("flags", said.get("Features", "")).split()
    return {
        "processor": said.get("model name") or platform.machine(),
        **{name: said[key] for key, name in _NUMBERS.items() if key in said},
        "flags": sorted(filter(_VECTOR.match, flags)),
    }


@cache
def revision() -> str:
    """Return the revision of the clone, with `+` if files are changed; empty outside a clone."""
    state = git_state() or {}
    return (state.get("revision") or "")[:9] + ("+" if state.get("modified") else "")
