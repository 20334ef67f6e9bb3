"""Find out from its variables whether a launcher has started several processes together."""

from collections.abc import Mapping

from highrank_plugins.common import stop_request
from highrank_plugins.common.user_error import UserError

# numbers of processes: Open MPI and Spectrum MPI; MPICH, Intel MPI, Cray and Flux; MVAPICH and its
# mpirun_rsh; a step of srun; Cray's mpiexec; jsrun; horovodrun
_SIZES = (
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPIRUN_NPROCS",
    "SLURM_STEP_NUM_TASKS", "PALS_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE",
)  # fmt: skip
_RANKS = ("PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE")  # less than a number that is not given


def processes_started(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes were started together, and the variable that says so.

    Where torchrun or `highrank launch` is the innermost launcher, it alone counts.
    """
    names = [("WORLD_SIZE", 0)] if "RANK" in environment else []  # Kubernetes sets them, too
    if not {"TORCHELASTIC_RUN_ID", stop_request.LAUNCHED} & {*environment}:
        names += [*((name, 0) for name in _SIZES), *((name, 1) for name in _RANKS)]
    given = [(environment.get(name, ""), more, name) for name, more in names]
    return max([(1, ""), *((int(n) + more, name) for n, more, name in given if n.isdecimal())])


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
