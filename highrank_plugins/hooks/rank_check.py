"""The processes of a training run may hold different parameters, and nothing compares them.

What breaks: after a bit flip in one GPU's memory, or an update that only some processes did, each
process trains a model of its own. The loss stays plausible, and checkpoints hold rank 0's.
Why: gradients are summed over processes, parameters are never compared. fairseq compares the norms
of gradients, which the sum has made equal.
What we do: `--check-ranks N` sums the bits of each parameter with weights that depend on the place,
every N updates, and gathers the sums of all processes: 8 bytes a parameter. Where they differ, all
processes end with the parameter's name and the ranks that differ from the majority. Float32 copies
of `--fp16`, and what an optimizer keeps, are not compared.
Delete when: fairseq does so.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from fairseq import options
from fairseq.trainer import Trainer
from fairseq_cli import train as training
from omegaconf import open_dict
from torch import Tensor, nn

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

CHUNK = 2**20  # elements at a time, which bounds the memory of a check
_EVEN = 0x3C6EF372FE94F82A  # multiples modulo 2^64 look random
_REPLICATED = ("c10d", "no_c10d", "legacy_ddp", "pytorch_ddp")


@replaces(options, "add_distributed_training_args")
def add_distributed_training_args(stock, parser, *args, **kwargs):
    """Add fairseq's options of several processes, and ours."""
    group = stock(parser, *args, **kwargs)
    group.add_argument(
        "--check-ranks", type=_count, default=0, metavar="N",
        help="compare the parameters of all processes every N updates, and end the run if "
            "they differ (default: 0, never)",
    )  # fmt: skip
    return group


def _count(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of updates, got {word!r}")
    return int(word)


@replaces(training, "convert_namespace_to_omegaconf")
def convert_namespace_to_omegaconf(stock, args):
    """Return the configuration of a training run, with --check-ranks among those of processes."""
    cfg = stock(args)
    if args.check_ranks:
        with open_dict(cfg.distributed_training):
            cfg.distributed_training.check_ranks = args.check_ranks
    return cfg


@replaces(Trainer, "__init__")
def init(stock, trainer, cfg, *args, **kwargs) -> None:
    """Construct a trainer."""
    backend = cfg.distributed_training.ddp_backend
    if _interval(cfg) and (backend not in _REPLICATED or cfg.common.model_parallel_size > 1):
        raise UserError(
            f"--check-ranks: with --ddp-backend {backend} and --model-parallel-size "
            f"{cfg.common.model_parallel_size} processes hold different parameters; remove it"
        )
    stock(trainer, cfg, *args, **kwargs)


@replaces(Trainer, "train_step")
def train_step(stock, trainer, samples, raise_oom=False):
    """Do one update, and compare the processes when it is time."""
    logged = stock(trainer, samples, raise_oom)
    interval, updates = _interval(trainer.cfg), trainer.get_num_updates()
    if interval and updates % interval == 0 and trainer.data_parallel_world_size > 1:
        compare_ranks(trainer.get_model(), trainer.data_parallel_process_group, updates)
    return logged


def _interval(cfg) -> int:
    group = cfg.distributed_training
    return group.check_ranks if "check_ranks" in group else 0  # hydra accepts it as +check_ranks


def compare_ranks(model: nn.Module, group, updates: int) -> None:
    """Compare the parameters of all processes of a group; each of them must call it.

    Args:
        updates: number of updates done, for the message.
    """
    named = [(n, p) for n, p in model.named_parameters() if not getattr(p, "expert", False)]
    sums = torch.stack([bit_sum(parameter) for _, parameter in named])
    gathered = [torch.empty_like(sums) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, sums, group=group)
    table = torch.stack(gathered)
    if bool((table == table[0]).all()):
        return
    with suppress(RuntimeError):  # a process that leaves early would break the others' gather
        torch.distributed.barrier(group)
    rows = table.tolist()
    index = next(i for i, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1)
    raise RuntimeError(
        f"--check-ranks: after update {updates} {_who([row[index] for row in rows])} in "
        f"{named[index][0]}. Resume from a checkpoint written before the last check that passed; "
        "if it happens again on the same machine, its memory or GPU is defective"
    )


def _who(sums: Sequence[int]) -> str:
    """Return the ranks that differ from the majority, given the sum of each."""
    (most, count), *_ = Counter(sums).most_common(1)
    if 2 * count <= len(sums):
        return f"all ranks from 0 to {len(sums) - 1} do not agree"
    odd = [str(rank) for rank, value in enumerate(sums) if value != most]
    return f"rank {', '.join(odd)} of {len(sums)} differs from the others"


def bit_sum(tensor: Tensor) -> Tensor:
    """Return a sum of the bits of a tensor of any shape, as an int64 scalar on its device.

    Two tensors that differ in one element have different sums; others almost always do.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start, words in _words(tensor.detach()):
        place = torch.arange(start, start + len(words), device=words.device)
        # a product by an odd factor is one-to-one modulo 2^64
        total += (words * (place * _EVEN + 1)).sum()
    return total


def _words(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the bits of elements as int64 [CHUNK], each with the index of its first one."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(-1).view(bits)
    for start in range(0, len(flat), CHUNK):
        yield start, flat[start : start + CHUNK].to(torch.int64)
