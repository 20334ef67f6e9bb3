"""Write commands and environment of a launch: of torchrun on several machines, or in words."""

import hashlib
import os
import shlex

from highrank_plugins.common import heartbeat
from highrank_plugins.common.processes import python
from highrank_plugins.training.launch.flags import Place, distributed_flags
from highrank_plugins.training.launch.plan import LOOPBACK, Plan, split_address

AGENT_MODULE = "highrank_plugins.training.launch.agent"
LOOPBACK_INTERFACE = "lo"
RANK_MODULE = "highrank_plugins.training.launch.rank"
# --dry-run prints this example; a start makes a temporary folder of its own
STORE = "file:///tmp/highrank-launch-XXXXXXXX/store-0"


def torchrun_words(plan: Plan, address: str) -> list[str]:
    """Return `agent … rank --world-size N … -- fairseq-train …`, which each node runs.

    SIGTERM, SIGUSR1 and SIGHUP are not among its signals: it would end all processes within 30
    seconds. They are ignored when it starts, and the launcher asks the processes itself.
    """
    host, _ = split_address(address)
    words = [
        *python("-m", AGENT_MODULE),
        *("--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", address),
        *("--rdzv-conf", f"join_timeout={plan.timeout},read_timeout={plan.timeout}"),
        *("--max-restarts", str(plan.max_restarts)),
        *("--signals-to-handle", "SIGINT,SIGQUIT"),
    ]
    if host in (LOOPBACK, "localhost"):
        # within a container, the machine's name often does not resolve
        words += ["--local-addr", LOOPBACK]
    return [*words, "--no-python", *rank_words(plan)]


def run_id(plan: Plan) -> str:
    """Return a name that tells training runs at one address apart.

    Equal commands have equal names. It is not secret: every client of the store can list its keys.
    """
    return f"highrank-{hashlib.sha256(shlex.join(plan.command).encode()).hexdigest()[:12]}"


def rank_words(plan: Plan, init_method: str = "env://") -> list[str]:
    """Return the command of one process; its environment says which one it is."""
    return [
        *python("-m", RANK_MODULE),
        *("--init-method", init_method),
        *("--world-size", str(plan.world_size), "--log-dir", str(plan.log_dir)),
        *([] if plan.gpus else ["--cpu"]),
        *("--", *plan.command),
    ]


def environment(plan: Plan) -> dict[str, str]:
    """Return what is added to the launcher's environment for the processes."""
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(plan.threads)),
        "HIGHRANK_RENDEZVOUS_TIMEOUT": str(plan.timeout),
        heartbeat.TIMEOUT: str(plan.stall_timeout),
        "PYTHONUNBUFFERED": "1",
    }
    if plan.nodes == 1:
        # not reachable from other machines, or through this one's network address
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, LOOPBACK_INTERFACE)
    else:
        # torchrun's default for --rdzv-id: other users can read a command line
        variables["PET_RDZV_ID"] = run_id(plan)
        # otherwise restarted processes read stale addresses in torchrun's own store
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # fairseq uses any GPU that it sees
    return variables if plan.gpus else variables | {"CUDA_VISIBLE_DEVICES": ""}


def describe(plan: Plan) -> str:
    """Return the environment, the line of torchrun if any, and what each process runs."""
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
        f"GPU {local_rank}" if plan.gpus else f"CPU threads: {environment(plan)['OMP_NUM_THREADS']}"
    )
    return f"# rank {rank}: node {node}, {device}\n{line}"
