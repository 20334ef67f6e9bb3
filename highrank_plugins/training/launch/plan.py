"""Plan the processes of a launch: their number, machines, command, options and environment."""

import hashlib
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common import heartbeat
from highrank_plugins.common.files import require_space
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.processes import python, refuse_several, usable_cores
from highrank_plugins.common.user_error import UserError

PROGRAM = "fairseq-train"
TOLERANCE = 0.1
PORT = 29500
OURS = dict.fromkeys(
    """--distributed-init-method --distributed-world-size --distributed-rank
    --distributed-no-spawn --distributed-port --distributed-num-procs --distributed-backend
    --device-id --local_rank""".split(),
    "the launcher sets it for each process",
)


def check_program(
    words: Sequence[str], program: str = PROGRAM, refused: Mapping[str, str] = OURS
) -> None:
    """Refuse a command of another program, or with one of some options."""
    first = words[0] if words else "nothing"
    if first != program:
        near = did_you_mean(first, [program])
        raise ValueError(f"expected '{program} …' after --, got {first!r}{near}")
    for name in (word.partition("=")[0] for word in words):
        if name in refused:
            raise ValueError(f"{name}: {refused[name]}; remove it")


def refuse_missing(words: Sequence[str]) -> None:
    """Raise UserError if a path is missing; fairseq would say so after seconds of imports."""
    names = ("--user-dir", "--finetune-from-model", "--path")
    named = [(name, option(words, name) or "") for name in names]
    named += [("DATA", word) for word in words[1:2] if not word.startswith("-")]
    for name, value in named:
        for path in value.split(":"):
            if path and not os.path.exists(path):
                raise UserError(f"{name} {path}: no such file or directory; correct the path")


def option(words: Sequence[str], name: str) -> str | None:
    """Return an option's last value, written `--name value` or `--name=value`."""
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def save_dir(words: Sequence[str]) -> Path:
    """Return the folder of a command's checkpoints."""
    return Path(option(words, "--save-dir") or "checkpoints")


def with_option(words: Sequence[str], name: str, value: str) -> list[str]:
    """Return the words with every value of an option that is among them replaced."""
    changed = list(words)
    for i, word in enumerate(words):
        if word == name:
            changed[i + 1] = value
        elif word.startswith(f"{name}="):
            changed[i] = f"{name}={value}"
    return changed


def fit_batch(effective_tokens: int, max_tokens: int, world_size: int) -> tuple[int, int]:
    """Return --max-tokens and --update-freq whose product with `world_size` is as required.

    The first is less than `max_tokens` where no multiple of that is within `TOLERANCE`.
    """
    each = world_size * max_tokens
    freq = max(1, round(effective_tokens / each))
    if abs(freq * each - effective_tokens) <= TOLERANCE * effective_tokens:
        return max_tokens, freq
    freq = -(-effective_tokens // each)  # rounded up: a smaller batch fits into memory
    lowered = effective_tokens // (freq * world_size)
    if not lowered:
        raise ValueError(
            f"--effective-tokens {effective_tokens}: {world_size} processes cannot have a token "
            "each; use fewer processes"
        )
    return lowered, freq


def with_effective_batch(
    command: Sequence[str], effective_tokens: int, world_size: int
) -> tuple[list[str], str]:
    """Return the command with the options of `fit_batch`, and a line that states the result."""
    given = option(command, "--max-tokens")
    if given is None or not given.isdecimal() or int(given) == 0:
        raise ValueError("--effective-tokens needs --max-tokens N of fairseq-train")
    if option(command, "--update-freq") is not None:
        raise ValueError("--effective-tokens sets --update-freq: remove one of the two")
    max_tokens, freq = fit_batch(effective_tokens, int(given), world_size)
    lowered = "" if max_tokens == int(given) else f" (lowered from {given})"
    line = (
        f"--update-freq {freq}: {_processes(world_size)} × --max-tokens {max_tokens}{lowered} × "
        f"{freq} = {world_size * max_tokens * freq} tokens per update at most "
        f"({effective_tokens} wanted)"
    )
    words = with_option(command, "--max-tokens", str(max_tokens))
    return [*words, "--update-freq", str(freq)], line


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def with_effective_streams(
    command: Sequence[str], effective_streams: int, world_size: int
) -> tuple[list[str], str]:
    """Return the command with each process's share of the streams, and a line that says so."""
    if option(command, "--task") != "bptt_language_modeling":
        raise ValueError(
            "--effective-streams is for --task bptt_language_modeling; take --effective-tokens"
        )
    name = "--batch-size" if option(command, "--batch-size") else "--max-sentences"
    if option(command, name) is None:
        raise ValueError("--effective-streams needs --batch-size N of fairseq-train")
    if option(command, "--streams") is not None:
        raise ValueError("--effective-streams sets --streams: remove one of the two")
    if effective_streams < world_size:
        raise ValueError(
            f"--effective-streams {effective_streams} (batch_size of a recipe): {world_size} "
            f"processes cannot have one each; use at most {effective_streams} processes on all "
            "nodes together, or more streams, which makes another training run"
        )
    less, more = divmod(effective_streams, world_size)  # the task divides them in the same way
    share = less + (more > 0)
    words = with_option(command, name, str(share))
    product = f"{_processes(world_size)} × {share}"
    if more:
        words += ["--streams", str(effective_streams)]
        product = f"{more} of {product} + {world_size - more} × {less}"
    return words, f"{name} {share}: {product} = {effective_streams} streams"


@dataclass(frozen=True)
class Plan:
    """Describe a training run on `nodes` × `per_node` processes."""

    command: tuple[str, ...]  # `fairseq-train …`, without the options that `launch` adds
    log_dir: Path
    nodes: int = 1
    per_node: int = 1
    gpus: bool = True  # one for each process, else CPU cores
    rendezvous: str | None = None  # HOST:PORT where several nodes meet
    timeout: int = 300  # seconds within which all processes must meet
    max_restarts: int = 0  # of all processes, after one has failed
    stall_timeout: int = 0  # seconds without a sign of life until a process ends; 0: never

    def __post_init__(self) -> None:
        check_program(self.command)
        if self.rendezvous is not None:
            split_address(self.rendezvous)

    @property
    def world_size(self) -> int:
        """Return the number of processes in all."""
        return self.nodes * self.per_node

    def check_meeting(self) -> None:
        """Require an address for several nodes to meet at (SLURM finds one itself)."""
        if self.nodes == 1:
            refuse_several(os.environ, 1, "start this command once, or pass --nodes N")
        elif self.rendezvous is None:
            raise ValueError(
                f"--nodes {self.nodes}: name the address where they meet, the same on every "
                f"node: --rendezvous HOST:PORT, where HOST is one of them (PORT {PORT} will "
                "usually do)"
            )

    @property
    def finished(self) -> Path:
        """Return a file that exists once the training run is complete, and not before."""
        return self.log_dir / "finished"

    @property
    def run_id(self) -> str:
        """Return a name, which is not secret, that tells commands at one address apart."""
        return f"highrank-{hashlib.sha256(shlex.join(self.command).encode()).hexdigest()[:12]}"


def split_address(address: str) -> tuple[str, int]:
    """Return HOST:PORT as its parts."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"--rendezvous {address!r}: expected HOST:PORT, as in node1:{PORT}")
    return host, int(port)


def check_machine(plan: Plan) -> None:
    """Require a GPU of this machine for each process, and disk space for their logs."""
    if plan.gpus:
        import torch

        count = torch.cuda.device_count()
        if plan.per_node > count:
            raise ValueError(
                f"--gpus-per-node {plan.per_node}: torch sees {count} GPUs on "
                f"{socket.gethostname()}; --processes N trains on a CPU"
            )
    plan.log_dir.mkdir(parents=True, exist_ok=True)
    require_space(plan.log_dir, 1e9)


def rank_words(plan: Plan, init_method: str = "env://") -> list[str]:
    """Return the command of one process; its environment says which one it is."""
    return [
        *python("-m", f"{__package__}.rank"),
        *("--init-method", init_method),
        *("--world-size", str(plan.world_size), "--log-dir", str(plan.log_dir)),
        *([] if plan.gpus else ["--cpu"]),
        *("--", *plan.command),
    ]


def environment(plan: Plan) -> dict[str, str]:
    """Return what is added to the launcher's environment for the processes."""
    threads = str(max(1, usable_cores() // plan.per_node))
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "HIGHRANK_RENDEZVOUS_TIMEOUT": str(plan.timeout),
        heartbeat.TIMEOUT: str(plan.stall_timeout),
        "PYTHONUNBUFFERED": "1",
    }
    if plan.nodes == 1:
        # not reachable from other machines, or through this one's network address
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, "lo")
    else:
        # torchrun's default for --rdzv-id: other users can read a command line
        variables["PET_RDZV_ID"] = plan.run_id
        # otherwise restarted processes read stale addresses in torchrun's own store
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # fairseq uses any GPU that it sees
    return variables if plan.gpus else variables | {"CUDA_VISIBLE_DEVICES": ""}
