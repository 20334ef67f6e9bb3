"""What this machine is: the part of `highrank doctor` that no package decides."""

import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from highrank_plugins.common.processes import memory_gib, usable_cores

GIB = 2**30


def describe_machine() -> dict[str, object]:
    """Interpreter, operating system, cores this process may use, memory and disk in GiB."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / GIB, 1),
    }


def describe_devices() -> dict[str, object]:
    """CUDA devices by name, the CUDA version of torch, and where kernels of losses can run.

    `cpu_kernels` is the file of their library, or why there is none.
    """
    import torch

    from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

    count = torch.cuda.device_count()
    kernels = library()
    return {
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(count)],
        "triton": find_spec("triton") is not None,
        "cpu_kernels": str(kernels) if isinstance(kernels, Unavailable) else kernels._name,
    }
