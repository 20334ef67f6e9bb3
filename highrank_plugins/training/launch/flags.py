"""Write the options of fairseq-train that say which of how many processes it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from highrank_plugins.common.suggest import did_you_mean

PROGRAM = "fairseq-train"
# what a launch decides
OURS = (
    "--distributed-init-method",
    "--distributed-world-size",
    "--distributed-rank",
    "--distributed-no-spawn",
    "--distributed-port",
    "--distributed-num-procs",
    "--distributed-backend",
    "--device-id",
    "--local_rank",
)


@dataclass(frozen=True)
class Place:
    """Say which process of a training this is.

    Attributes:
        local_rank: its number on its machine.
        address: where all of them meet, `env://` or `tcp://HOST:PORT`.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str = "env://"


def check_command(words: Sequence[str]) -> None:
    """Whether a command can be launched.

    Raises:
        ValueError: it is another program's, or has an option that `launch` gives.
    """
    if not words or words[0] != PROGRAM:
        first = words[0] if words else "nothing"
        near = did_you_mean(first, [PROGRAM])
        raise ValueError(f"expected '{PROGRAM} …' after --, got {first!r}{near}")
    for word in words:
        name = word.partition("=")[0]
        if name in OURS:
            raise ValueError(f"{name} is set by the launcher for each process: remove it")


def distributed_flags(
    place: Place, visible_gpus: int | None, command: Sequence[str]
) -> list[list[str]]:
    """Return everything that fairseq needs to know, each option with its value.

    Args:
        visible_gpus: how many the process sees; None where it uses none.
        command: a --ddp-backend in it is kept.
    """
    # each sees one: it is number 0 to all of them
    device = 0 if visible_gpus in (None, 1) else place.local_rank
    flags = [
        ["--distributed-init-method", place.address],
        ["--distributed-world-size", str(place.world_size)],
        ["--distributed-rank", str(place.rank)],
        ["--distributed-no-spawn"],
        ["--device-id", str(device)],
        ["--distributed-backend", "gloo" if visible_gpus is None else "nccl"],
    ]
    if option(command, "--ddp-backend") is None:
        backend = "legacy_ddp" if visible_gpus is None else "pytorch_ddp"
        flags.append(["--ddp-backend", backend])
    return flags


def option(words: Sequence[str], name: str) -> str | None:
    """Return an option's last value, written `--name value` or `--name=value`."""
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def with_option(words: Sequence[str], name: str, value: str) -> list[str]:
    """Return the words with every value of an option that is among them replaced."""
    changed = list(words)
    for i, word in enumerate(words):
        if word == name:
            changed[i + 1] = value
        elif word.startswith(f"{name}="):
            changed[i] = f"{name}={value}"
    return changed
