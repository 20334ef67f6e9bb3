"""Everything that a launch would do, as text."""

import shlex

from highrank_plugins.training.launch.flags import Place, distributed_flags
from highrank_plugins.training.launch.plan import Plan
from highrank_plugins.training.launch.torchrun import environment, torchrun_words

STORE = "file:///tmp/highrank-launch-XXXXXXXX/store-0"


def describe(plan: Plan) -> str:
    """Return the environment, the line of torchrun if any, and what each process runs.

    Raises:
        ValueError: see `Plan.check_meeting`.
    """
    plan.check_meeting()
    if plan.rendezvous is None or plan.nodes == 1:
        head = [
            f"# on this machine, where {STORE} stands for a file in a new private folder:",
            *(f"export {line}" for line in _assignments(environment(plan))),
        ]
    else:
        torchrun = shlex.join(torchrun_words(plan, plan.rendezvous))
        head = [
            f"# on each of {plan.nodes} nodes:",
            " \\\n    ".join([*_assignments(environment(plan)), torchrun]),
        ]
    rows = [
        "",
        f"# {plan.world_size} processes, whose output goes to {plan.log_dir}/rank<N>.log:",
    ]
    return "\n".join([*head, *rows, *(_process(plan, rank) for rank in range(plan.world_size))])


def _assignments(variables: dict[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]


def _process(plan: Plan, rank: int) -> str:
    node, local_rank = divmod(rank, plan.per_node)
    place = Place(rank, plan.world_size, local_rank, "env://" if plan.nodes > 1 else STORE)
    flags = distributed_flags(place, plan.per_node if plan.gpus else None, plan.command)
    line = shlex.join([*plan.command, *(word for flag in flags for word in flag)])
    device = (
        f"GPU {local_rank}" if plan.gpus else f"{environment(plan)['OMP_NUM_THREADS']} CPU threads"
    )
    return f"# rank {rank}: node {node}, {device}\n{line}"
