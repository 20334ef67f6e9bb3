"""Command lines of the tiny training runs, and what their checkpoints hold."""

from collections.abc import Iterator
from pathlib import Path

import torch

from tests.fairseq_cli import Finished, run

COMMON = """--optimizer adam --lr 0.005 --max-tokens 500 --num-workers 0 --no-progress-bar
    --dropout 0.1 --required-batch-size-multiple 1 --no-epoch-checkpoints --seed 3""".split()
TRANSLATION = [*COMMON, "--source-lang", "en", "--target-lang", "de"]
LANGUAGE_MODEL = [*COMMON, "--task", "language_modeling", "--tokens-per-sample", "32"]
NARROW = """--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1
    --encoder-attention-heads 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64
    --decoder-layers 1 --decoder-attention-heads 2""".split()
NARROW_LM = """--decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32
    --decoder-ffn-embed-dim 64 --decoder-layers 1 --decoder-attention-heads 2""".split()
NARROW_LSTM = """--encoder-embed-dim 32 --encoder-hidden-size 24 --decoder-embed-dim 32
    --decoder-hidden-size 24 --decoder-out-embed-dim 32""".split()
NARROW_AWD = """--decoder-embed-dim 32 --decoder-hidden-size 24 --decoder-last-hidden-size 32
    --decoder-layers 2""".split()
OUR_LOSS = ["--criterion", "highrank_cross_entropy"]


def train(data: Path, save_dir: Path, arch: str, updates: int, *options: object) -> Finished:
    """Train for `updates` updates in all; resume what `save_dir` holds."""
    criterion = [] if "--criterion" in options else OUR_LOSS
    where = ["--save-dir", save_dir, "--arch", arch, "--max-update", updates]
    return run("train", data, *where, *task_and_shape(arch), *criterion, *options)


def in_group(address: str, rank: int, world_size: int) -> list[object]:
    """Return the options of one of several processes on CPUs that train together."""
    return [
        *("--distributed-world-size", world_size, "--distributed-rank", rank, "--device-id", 0),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]


def task_and_shape(arch: str) -> list[str]:
    """Return task and sizes of a tiny model of this architecture's trunk."""
    if arch.startswith("awd_lstm_lm"):
        return [*LANGUAGE_MODEL, *NARROW_AWD]
    if arch.startswith("transformer_lm"):
        return [*LANGUAGE_MODEL, *NARROW_LM]
    if arch.startswith("lstm"):
        return [*TRANSLATION, *NARROW_LSTM]
    return [*TRANSLATION, *NARROW]


def last(save_dir: Path) -> Path:
    """Return the checkpoint of the last update."""
    return save_dir / "checkpoint_last.pt"


def parameters(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the model parameters of a checkpoint."""
    return torch.load(checkpoint, weights_only=True)["model"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Return whether all are equal bit for bit, names included."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every tensor and number of a checkpoint, or of a part of it, by its place."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}/{index}")
    else:
        yield path, tree
