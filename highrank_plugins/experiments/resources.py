"""What this process may use of the machine."""

import os


def usable_cores() -> int:
    """Those that the system, a container or a scheduler leaves to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float:
    """Of the machine, in 2^30 bytes."""
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
