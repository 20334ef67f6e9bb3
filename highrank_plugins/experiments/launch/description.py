"""Everything that a launch would do, as text."""

import shlex

from highrank_plugins.experiments.launch.flags import Place, distributed_flags
from highrank_plugins.experiments.launch.plan import LOOPBACK, PORT, Plan
from highrank_plugins.experiments.launch.torchrun import environment, torchrun_words


def describe(plan: Plan) -> str:
    """The environment, the line of torchrun, and what each process runs.

    Raises:
        ValueError: see `Plan.check_meeting`.
    """
    plan.check_meeting()
    address = plan.rendezvous or f"{LOOPBACK}:{PORT}"
    where = "on this machine" if plan.nodes == 1 else f"on each of {plan.nodes} nodes"
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment(plan).items()]
    lines = [
        f"# {where}:" if plan.rendezvous else f"# {where}, where {address} stands for a free port:",
        " \\\n    ".join([*variables, shlex.join(torchrun_words(plan, address))]),
        "",
        f"# {plan.world_size} processes, whose output goes to {plan.log_dir}/rank<N>.log:",
    ]
    return "\n".join([*lines, *(_process(plan, rank) for rank in range(plan.world_size))])


def _process(plan: Plan, rank: int) -> str:
    node, local_rank = divmod(rank, plan.per_node)
    place = Place(rank, plan.world_size, local_rank)
    flags = distributed_flags(place, plan.per_node if plan.gpus else None, plan.command)
    line = shlex.join([*plan.command, *(word for flag in flags for word in flag)])
    device = (
        f"GPU {local_rank}" if plan.gpus else f"{environment(plan)['OMP_NUM_THREADS']} CPU threads"
    )
    return f"# rank {rank}: node {node}, {device}\n{line}"
