"""Start Python as a child, end it with its parent, and count processes, cores and memory."""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path

from highrank_plugins.common import stop_request
from highrank_plugins.common.user_error import UserError

_PR_SET_PDEATHSIG = 1
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
    """Make the system kill this process when its parent is gone (Linux), or a launcher."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if launcher:
        threading.Thread(target=_end_after, args=(os.pidfd_open(launcher),), daemon=True).start()


def end_with_main_process() -> None:
    """End this worker of `multiprocessing` when the process that asked for workers is gone.

    With a fork server it is not the worker's parent, and workers keep their own queue open.
    """
    main = multiprocessing.parent_process()
    assert main is not None
    threading.Thread(target=_end_after, args=(main.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


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
    said = {**environment, _TASK: _tasks_of_pbs(environment)}
    given = [(_NUMBER.fullmatch(said.get(name, "")), more, name) for name, more in names]
    return max([(1, ""), *((int(n[1][:_ENOUGH]) + more, name) for n, more, name in given if n)])


def _tasks_of_pbs(environment: Mapping[str, str]) -> str:
    """Return the number of processes of pbsdsh; none in task 1, the script of a job of any size."""
    task = _NUMBER.fullmatch(environment.get(_TASK, ""))
    if task is None or int(task[1][:_ENOUGH]) < 2:
        return ""
    try:  # the file has a line for each process
        return str(len(Path(environment["PBS_NODEFILE"]).read_text(errors="replace").split()))
    except (KeyError, OSError):
        return task[1]


def refuse_several(environment: Mapping[str, str], world: int, remedy: str) -> None:
    """Refuse to train in a process if more were started with it than the `world` of one model."""
    started, name = processes_started(environment)
    if started > world:
        raise UserError(
            f"{started} processes were started together, and each would train alone ({name}="
            f"{environment[name]}): {remedy}, or unset {name} for independent training runs"
        )
