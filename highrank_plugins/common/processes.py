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
# of mallopt, and of the environment
_KEEP = {"TRIM_THRESHOLD": (-1, 2**31 - 1), "MMAP_THRESHOLD": (-3, 2**28)}
_CHECKOUT = str(Path(__file__).parents[2])
_TASK = "PBS_TASKNUM"
# launcher → its variables with the number of processes, and with a rank, which is less than that
_LAUNCHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Open MPI, Spectrum MPI": (("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")),
    "MPICH, Intel MPI, Cray": (("PMI_SIZE", "MPI_LOCALNRANKS"), ("PMI_RANK", "MPI_LOCALRANKID")),
    "MVAPICH": (("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_RANK",)),
    "mpirun_rsh": (("MPIRUN_NPROCS",), ("MPIRUN_RANK",)),
    "srun": (("SLURM_STEP_NUM_TASKS",), ("SLURM_PROCID",)),
    "Cray's mpiexec and aprun": (("PALS_SIZE",), ("PALS_RANKID", "ALPS_APP_PE")),
    "jsrun": (("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_RANK",)),
    "horovodrun": (("HOROVOD_SIZE",), ("HOROVOD_RANK",)),
    "flux run": (("FLUX_JOB_SIZE",), ("FLUX_TASK_RANK",)),
    "pbsdsh": ((_TASK,), ("PBS_NODENUM",)),
    "blaunch": (("LSF_PM_TASKID",), ()),  # counts from 1
    "HTCondor": (("_CONDOR_NPROCS",), ("_CONDOR_PROCNO",)),
    "AWS Batch": (("AWS_BATCH_JOB_NUM_NODES",), ("AWS_BATCH_JOB_NODE_INDEX",)),
}
_NUMBER = re.compile(r"\s*\+?0*(\d+)\s*")
_ENOUGH = 9  # digits


def python(*words: str) -> list[str]:
    """Return the command of another Python, such as `-m MODULE`, that imports what this one does.

    Files of the working directory take no module's place, unless this package comes from there.
    """
    trusted = sys.path[0] == os.getcwd() == _CHECKOUT
    return [sys.executable, *([] if trusted else ["-P"]), *words]


def end_with_parent(launcher: int = 0) -> None:
    """Make the system kill this process when its parent is gone (Linux), or a launcher.

    A worker of `multiprocessing` ends with the process that asked for it, which is not its parent
    with a fork server; workers keep their own queue open.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    main = multiprocessing.parent_process()
    for sentinel in [os.pidfd_open(launcher)] if launcher else [main.sentinel] if main else []:
        threading.Thread(target=_end_after, args=(sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def keep_freed_memory() -> None:
    """Keep freed blocks for the next step, where the C library is GNU's.

    Otherwise each step takes its chunks from the system again, which fills them with zeros: 32,002
    page faults and a tenth of a softmax's step at M = 32,000. The environment's settings win.
    Blocks above 256 MiB go back: holes of their size made the peak of plain code 1.6 times as high.
    """
    for name, (parameter, size) in _KEEP.items():
        is_set = f"MALLOC_{name}_" in os.environ or "GLIBC_TUNABLES" in os.environ
        if not is_set and hasattr(libc := ctypes.CDLL(None), "mallopt"):
            libc.mallopt(parameter, size)


def usable_cores() -> int:
    """Return the number of cores that this process may use, as the system or a scheduler says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float:
    """Return the memory of the machine in GiB."""
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def processes_started(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes were started together, and the variable that says so.

    Where torchrun or `highrank launch` is the innermost launcher, it alone counts. Both give a rank
    and a size, without which their other variables come from elsewhere.
    """
    own = "RANK" in environment  # Kubernetes sets the size, too
    names = [("WORLD_SIZE", 0)] if own else []
    marks = {"TORCHELASTIC_RUN_ID", stop_request.LAUNCHED}
    if not (own and environment.get("WORLD_SIZE") and marks & {*environment}):
        for of_sizes, of_ranks in _LAUNCHERS.values():
            names += [*((name, 0) for name in of_sizes), *((name, 1) for name in of_ranks)]
    said = dict(environment)
    task = _NUMBER.fullmatch(environment.get(_TASK, ""))
    if task is None or int(task[1][:_ENOUGH]) < 2:
        said.pop(_TASK, None)  # task 1 is the script of a job of any size
    else:
        with suppress(KeyError, OSError):  # the file has a line for each process
            nodes = Path(environment["PBS_NODEFILE"]).read_text(errors="replace").split()
            said[_TASK] = str(len(nodes))
    given = [(_NUMBER.fullmatch(said.get(name, "")), more, name) for name, more in names]
    return max([(1, ""), *((int(n[1][:_ENOUGH]) + more, name) for n, more, name in given if n)])


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
    """Yield results in the order of the items; `items` is read as results are taken.

    `multiprocessing.Pool.imap` reads all of `items` at once, which for a corpus fills the memory.
    For several processes the function is pickled with each item; 1 uses no other process.
    """
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
