"""Name the command of each block of a configuration, with the model of its options.

The models of blocks about text are in `data/`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict

from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.data.corpora import CorpusOptions
from highrank_plugins.data.parallel import Rules
from highrank_plugins.data.pieces import PieceSettings
from highrank_plugins.measures import find_measure, measure_names

_SECONDS: dict[str, Any] = {"metavar": "SECONDS"}


class LaunchSettings(BlockOptions):
    """Say on which processes a model trains: `highrank launch`."""

    model_config = ConfigDict(strict=False)  # paths are text in a configuration

    nodes: int = option(1, "Number of nodes.", ge=1)
    gpus_per_node: int | None = option(
        None, "GPUs per node, one process each (default: all; without GPUs 1 CPU process).", ge=1
    )
    processes: int | None = option(None, "Processes per node, on CPU cores instead of GPUs.", ge=1)
    rendezvous: str | None = option(
        None, "Address at which several nodes meet.", {"metavar": "HOST:PORT"}
    )
    rendezvous_timeout: int = option(
        300, "Time to wait until all processes have met.", _SECONDS, ge=1
    )
    max_restarts: int | None = option(
        None,
        "Number of restarts from the last checkpoint after a failure "
        "(default: 3 with several nodes, else 0).",
        ge=0,
    )
    stall_timeout: int = option(
        600,
        "End a training run that gives no sign of life for this long (0: never). While it "
        "starts or saves, the limit is ten times as long, and at least ten minutes.",
        _SECONDS,
        ge=0,
    )
    effective_tokens: int | None = option(
        None, "Tokens per update over all processes: sets --update-freq.", ge=1
    )
    effective_streams: int | None = option(
        None, "Streams of a language model over all processes: sets --batch-size.", ge=1
    )
    log_dir: Path | None = option(
        None, "Folder for rank0.log, rank1.log, … (default: logs in --save-dir)."
    )
    slurm: Path | None = option(
        None, "Write a script for sbatch, and start nothing.", {"metavar": "FILE"}
    )
    submit: bool = option(False, "Submit the script to sbatch.")
    account: str | None = option(None, "Account that SLURM charges.")
    qos: str | None = option(None, "Quality of service of the SLURM job.", {"metavar": "NAME"})
    mem: str | None = option(None, "Memory per node of the SLURM job, such as 64G.")
    prologue: Path | None = option(
        None, "Bash at the start of the script: modules, conda, a container.", {"metavar": "FILE"}
    )
    sbatch: Annotated[
        list[str] | None, BeforeValidator(lambda given: [given] if type(given) is str else given)
    ] = option(None, "Option for sbatch, such as --sbatch=--time=24:00:00; may be repeated.")
    all_gpus_each: bool = option(
        False, "Under SLURM: each task sees all GPUs of its node (default: one)."
    )
    grace: int = option(
        180, "Under SLURM: stop and save this long before the time limit.", _SECONDS, ge=1
    )
    dry_run: bool = option(False, "Print all commands, and start nothing.")


class AdaptiveSettings(BlockOptions):
    """Say what a model that adapts is scored on, and what is kept: `highrank evaluate …`."""

    model_config = ConfigDict(strict=False)

    output: Path | None = option(None, "JSON file to write (default: only print).")
    split: str = option("test", "Split to score.")
    grid: bool = option(False, "Try all combinations of values, and use the best.")
    grid_split: str = option("valid", "Split on which --grid chooses.")
    grid_tokens: int | None = option(
        None, "Use only N tokens of --grid-split (default: all).", ge=1
    )
    save_seconds: float = option(120, "Seconds between two saves of the progress.", _SECONDS, ge=0)
    device: str | None = option(None, "cpu, cuda or cuda:N (default: a GPU if there is one).")


class DynamicSettings(BlockOptions):
    """Hold what all points of a dynamic evaluation share: `highrank evaluate dynamic`."""

    train_split: str = option("train", "Split to collect the gradient statistics from.")
    bptt: int = option(5, "Number of tokens of a segment.", ge=1)
    train_batch_size: int = option(100, "Number of parallel streams of the training text.", ge=1)
    statistic: Literal["rms", "sum"] = option(
        "rms", "Gradient statistic: root mean square, or root of the sum of squares."
    )
    normalise: Literal["mean", "sum"] = option(
        "mean", "Divide the statistic by its mean or its sum over tensors."
    )


class AverageSettings(BlockOptions):
    """Say how many of the last checkpoints are averaged."""

    last: int = option(1, "Number of checkpoints to average, the newest.", ge=1)


# block of a configuration → the model of its options; fairseq and measures check the other blocks
MODELS: dict[str, type[BlockOptions]] = {
    "data": PieceSettings, "clean": Rules, "corpus": CorpusOptions,
    "launch": LaunchSettings, "average": AverageSettings,
}  # fmt: skip


# block of a configuration → its command; measures have blocks of their names
PROGRAMS = {
    "data": "highrank data pieces", "clean": "highrank data clean-texts",
    "corpus": "highrank data lm-corpus", "launch": "highrank launch",
    "train": "fairseq-train", "finetune": "fairseq-train",
    "generate": "fairseq-generate", "evaluate": "fairseq-eval-lm",
}  # fmt: skip
_TRAINING = ("save_dir", "tensorboard_logdir", "log_format")
# options that a recipe adds and a block may not have
_SET_BY_RECIPES = {
    "train": _TRAINING, "finetune": (*_TRAINING, "finetune_from_model"),
    "generate": ("gen_subset", "path", "score_reference"), "evaluate": ("gen_subset", "path"),
}  # fmt: skip


def program_of(block: str) -> str:
    """Return the command of a key of `PROGRAMS` or of a measure; the latter imports torch."""
    return PROGRAMS.get(block) or find_measure(block).command(block)


def set_by_recipes(block: str) -> tuple[str, ...]:
    """Return the options that the block of a command or measure may not have."""
    of_measure = ("split", "output") if block in measure_names() else ()
    return _SET_BY_RECIPES.get(block, of_measure)
