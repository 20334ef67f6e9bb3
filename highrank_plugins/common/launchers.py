"""Find out from its variables whether a launcher has started several processes together."""

import re
from collections.abc import Mapping

from highrank_plugins.common import stop_request
from highrank_plugins.common.user_error import UserError

# numbers of processes: Open MPI and Spectrum MPI; MPICH, Intel MPI, Cray and Flux; MVAPICH and its
# mpirun_rsh; a step of srun; Cray's mpiexec; jsrun; horovodrun
_SIZES = (
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPIRUN_NPROCS",
    "SLURM_STEP_NUM_TASKS", "PALS_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE",
)  # fmt: skip
# less than a number that may not be given
_RANKS = (
    "PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
    "MV2_COMM_WORLD_RANK", "MPIRUN_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "HOROVOD_RANK",
)  # fmt: skip
_NUMBER = re.compile(r"\s*\+?0*(\d+)\s*")
_ENOUGH = 9  # digits


def processes_started(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes were started together, and the variable that says so.

    Where torchrun or `highrank launch` is the innermost launcher, it alone counts. Both give a rank
    and a size, without which their other variables come from elsewhere.
    """
    own = "RANK" in environment  # Kubernetes sets the size, too
    names = [("WORLD_SIZE", 0)] if own else []
    marks = {"TORCHELASTIC_RUN_ID", stop_request.LAUNCHED}
    if not (own and environment.get("WORLD_SIZE") and marks & {*environment}):
        names += [*((name, 0) for name in _SIZES), *((name, 1) for name in _RANKS)]
    given = [(_NUMBER.fullmatch(environment.get(name, "")), more, name) for name, more in names]
    return max([(1, ""), *((int(n[1][:_ENOUGH]) + more, name) for n, more, name in given if n)])


def refuse_several(environment: Mapping[str, str], world: int, remedy: str) -> None:
    """Refuse to train in a process if more were started with it than train one model.

    Args:
        world: number of processes that train one model.
        remedy: what to do.
    """
    started, name = processes_started(environment)
    if started > world:
        raise UserError(
            f"{started} processes were started together, and each would train alone ({name}="
            f"{environment[name]}): {remedy}, or unset {name} for independent training runs"
        )
