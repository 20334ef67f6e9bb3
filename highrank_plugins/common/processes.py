"""Start Python as a child that ends with its parent, map in several, count cores and memory."""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

from highrank_plugins.common import stop_request
from highrank_plugins.common.user_error import UserError

_PR_SET_PDEATHSIG = 1
_CHECKOUT = str(Path(__file__).parents[2])
_TASK = "PBS_TASKNUM"
# variables of launchers with the number of processes, and with a rank, which is less than that
_SIZES = f"""OMPI_COMM_WORLD_SIZE PMI_SIZE MPI_LOCALNRANKS MV2_COMM_WORLD_SIZE MPIRUN_NPROCS
    SLURM_STEP_NUM_TASKS PALS_SIZE JSM_NAMESPACE_SIZE HOROVOD_SIZE FLUX_JOB_SIZE {_TASK}
    LSF_PM_TASKID _CONDOR_NPROCS AWS_BATCH_JOB_NUM_NODES""".split()
_RANKS = """OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK MPI_LOCALRANKID MV2_COMM_WORLD_RANK MPIRUN_RANK
    SLURM_PROCID PALS_RANKID ALPS_APP_PE JSM_NAMESPACE_RANK HOROVOD_RANK FLUX_TASK_RANK
    PBS_NODENUM _CONDOR_PROCNO AWS_BATCH_JOB_NODE_INDEX""".split()
_NUMBER = re.compile(r"\s*\+?0*(\d+)\s*")
_ENOUGH = 9  # digits


def python(*words: str) -> list[str]:
    """Return the command of another Python, as `-m MODULE`, that imports what this one does."""
    # files of the working directory take no module's place, unless this package comes from there
    trusted = sys.path[0] == os.getcwd() == _CHECKOUT
    return [sys.executable, *([] if trusted else ["-P"]), *words]


def end_with_parent(launcher: int = 0) -> None:
    """Make the system kill this process when its parent is gone (Linux), or a launcher."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # asks for a worker, whose parent may be a fork server; workers keep their own queue open
    main = multiprocessing.parent_process()
    for sentinel in [os.pidfd_open(launcher)] if launcher else [main.sentinel] if main else []:
        threading.Thread(target=_end_after, args=(sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def usable_cores() -> int:
    """Return the number of cores that this process may use, as the system or a scheduler says."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """Return the memory of the machine in GiB."""
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def processes_started(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes were started together, and the variable that says so.

    Where torchrun or `highrank launch` is the innermost launcher, it alone counts. Both give a rank
    and a size, without which their other variables come from elsewhere.
    """
    own = "RANK" in environment  # Kubernetes sets the size, too
    names, marks = {"WORLD_SIZE": 0} if own else {}, {"TORCHELASTIC_RUN_ID", stop_request.LAUNCHED}
    if not (own and environment.get("WORLD_SIZE") and marks & {*environment}):
        names |= dict.fromkeys(_SIZES, 0) | dict.fromkeys(_RANKS, 1)
    given = {name: _NUMBER.fullmatch(environment.get(name, "")) for name in names}
    found = {name: int(n[1][:_ENOUGH]) + names[name] for name, n in given.items() if n}
    if found.get(_TASK, 0) < 2:
        found.pop(_TASK, None)  # task 1 is the script of a job of any size
    else:
        with suppress(KeyError, OSError):  # the file has a line for each process
            nodes = Path(environment["PBS_NODEFILE"]).read_text(errors="replace")
            found[_TASK] = len(nodes.split())
    return max([(1, ""), *((count, name) for name, count in found.items())])


def refuse_several(environment: Mapping[str, str], world: int, remedy: str) -> None:
    """Refuse to train in a process if more were started with it than the `world` of one model."""
    started, name = processes_started(environment)
    if started > world:
        raise UserError(
            f"{started} processes were started together, and each would train alone ({name}="
            f"{environment[name]}): {remedy}, or unset {name} for independent training runs"
        )


Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 3  # items in flight per process: all are busy, and any memory is enough


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[Result]:
    """Yield results in the order of the items, which are read as results are taken."""
    if processes == 1:
        yield from map(work, items)
        return
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    todo = iter(items)
    with ProcessPoolExecutor(
        processes, mp_context=get_context("forkserver"), initializer=end_with_parent
    ) as pool:
        try:
            first = islice(todo, processes * _AHEAD)
            running: deque[Future[Result]] = deque(pool.submit(work, item) for item in first)
            while running:
                result = running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(todo, 1))
                yield result
        except BrokenProcessPool:
            raise OSError(
                f"one of {processes} processes was killed, perhaps for lack of memory: use "
                "fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield runs of `size` items, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
