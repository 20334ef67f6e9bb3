"""Find out from their variables whether a launcher has started several processes together."""

from collections.abc import Mapping

from highrank_plugins.common import stop_request
from highrank_plugins.common.user_error import UserError

# rank and number of processes; where a launcher gives no number, the rank is less than it
_VARIABLES = {
    "RANK": "WORLD_SIZE",  # torchrun, Kubernetes, accelerate, DeepSpeed
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",  # Open MPI, Spectrum MPI
    "PMIX_RANK": "",  # Open MPI 5, PRRTE
    "PMI_RANK": "PMI_SIZE",  # MPICH, Intel MPI, Cray
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",  # MVAPICH
    "MPIRUN_RANK": "MPIRUN_NPROCS",  # MVAPICH's mpirun_rsh
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",  # a step of srun; a batch script has the first alone
    "PALS_RANKID": "PALS_SIZE",  # Cray's mpiexec
    "ALPS_APP_PE": "",  # Cray's aprun
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",  # jsrun
    "FLUX_TASK_RANK": "FLUX_JOB_SIZE",
    "HOROVOD_RANK": "HOROVOD_SIZE",
}


def processes_started(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes were started together, and the variable that says so.

    The innermost launcher counts where it is torchrun or ours.
    """
    ours = "TORCHELASTIC_RUN_ID" in environment or stop_request.LAUNCHED in environment
    found = [(1, "")]
    for rank, size in [("RANK", "WORLD_SIZE")] if ours else _VARIABLES.items():
        if rank not in environment:
            continue
        if environment.get(size, "").isdecimal():
            found.append((int(environment[size]), size))
        elif rank != "RANK" and environment[rank].isdecimal():
            found.append((int(environment[rank]) + 1, rank))
    return max(found)


def refuse_several(environment: Mapping[str, str], world: int, remedy: str) -> None:
    """Refuse to train with fewer processes than were started together.

    Args:
        world: number of processes of this training run.
    Raises:
        UserError: each would train a model of its own; ends with `remedy`.
    """
    started, variable = processes_started(environment)
    if started > world:
        raise UserError(
            f"{started} processes were started together, and each would train alone "
            f"({variable}={environment[variable]}): {remedy}, or unset {variable} for independent "
            "training runs"
        )
