"""The command of torchrun that starts the processes of one machine."""

import hashlib
import os
import shlex
import sys

from highrank_plugins.experiments.launch.plan import LOOPBACK, Plan, split_address

RANK_MODULE = "highrank_plugins.experiments.launch.rank"


def torchrun_words(plan: Plan, address: str) -> list[str]:
    """`torchrun … rank --world-size N … -- fairseq-train …`, which each node runs.

    SIGTERM and SIGUSR1 are not among its signals: it would end all processes within 30 seconds.
    They are ignored when it starts, and the launcher asks the processes itself.
    """
    host, _ = split_address(address)
    words = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-id", run_id(plan)),
        *("--rdzv-conf", f"join_timeout={plan.timeout},read_timeout={plan.timeout}"),
        *("--max-restarts", str(plan.max_restarts)),
        *("--signals-to-handle", "SIGINT,SIGHUP,SIGQUIT"),
    ]
    if host in (LOOPBACK, "localhost"):
        # the name of a machine often leads nowhere within a container
        words += ["--local-addr", LOOPBACK]
    return [*words, "--module", *rank_words(plan)]


def run_id(plan: Plan) -> str:
    """What keeps trainings apart that meet at one address: equal commands have equal ones."""
    return f"highrank-{hashlib.sha256(shlex.join(plan.command).encode()).hexdigest()[:12]}"


def rank_words(plan: Plan) -> list[str]:
    """Module and arguments of one process; which one it is stands in its environment."""
    return [
        RANK_MODULE,
        *("--world-size", str(plan.world_size), "--log-dir", str(plan.log_dir)),
        *([] if plan.gpus else ["--cpu"]),
        *("--", *plan.command),
    ]


def environment(plan: Plan) -> dict[str, str]:
    """What torchrun's environment has besides the launcher's."""
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(plan.threads)),
        "HIGHRANK_RENDEZVOUS_TIMEOUT": str(plan.timeout),
        "PYTHONUNBUFFERED": "1",
        # or processes that start again read, in torchrun's own store, where others were before
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # fairseq takes a GPU wherever it sees one
    return variables if plan.gpus else variables | {"CUDA_VISIBLE_DEVICES": ""}
