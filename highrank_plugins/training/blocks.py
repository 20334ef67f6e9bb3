"""Name the command of each block of a configuration, and define the options of our own.

A command takes a model as one argument, and has an option for each field: the description is its
help, bounds are its bounds. `configuration.validate` checks a block of that name by the same model.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from highrank_plugins.measures import find_measure, measure_names


def option(
    default: Any,
    text: str,
    shown: dict[str, Any] | None = None,
    *,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """Return a field with its help and bounds; `shown` has a metavar, or the words of a flag."""
    return Field(default, description=text, json_schema_extra=shown, ge=ge, le=le)


_SECONDS: dict[str, Any] = {"metavar": "SECONDS"}


class BlockOptions(BaseModel):
    """Hold the options of a block."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataSettings(BlockOptions):
    """Say how parallel text becomes pieces: `highrank data pieces`."""

    vocab_size: int = option(..., "Number of pieces, shared by all languages.", ge=1)
    character_coverage: float = option(
        1.0, "Share of characters that SentencePiece covers; rarer ones become unknown.",
        ge=0.98, le=1,
    )  # fmt: skip
    algorithm: Literal["sentencepiece", "subword_nmt"] = option(
        "sentencepiece",
        "Algorithm. subword_nmt tokenises like Moses, and learns --vocab-size merges.",
    )
    sample: int | None = option(None, "Learn from N lines of each training text.", ge=1)


class CleanSettings(BlockOptions):
    """Say which sentence pairs are kept: `highrank data clean-texts`."""

    max_words: int = option(250, "Drop sentence pairs with more words on a side.", ge=1)
    max_ratio: float = option(9.0, "Drop sentence pairs whose length ratio exceeds this.", ge=1)
    drop_duplicates: bool = option(False, "Keep only the first of equal sentence pairs.")
    limit: int | None = option(None, "Read only the first N sentence pairs.", ge=1)


class CorpusSettings(BlockOptions):
    """Say how a published corpus is prepared: `highrank data lm-corpus`."""

    vocab_size: int | None = option(
        None,
        "Keep the N most frequent words; others become <unk>. "
        "[default: all; one_billion_word: 100000]",
    )
    max_train_lines: int | None = option(None, "Read only the first N training lines.")
    other_text: bool = option(False, "Accept counts that differ from the published ones.")
    workers: int | None = option(
        None, "Number of processes, for one_billion_word. [default: number of cores]"
    )


class DialogueSettings(BlockOptions):
    """Say how dialogues become text: `highrank data dialogue-text`."""

    context: int = option(9, "Number of utterances before a response.", ge=1)


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
    one_gpu_each: bool = option(
        True,
        "Under SLURM: each task sees one GPU of its node, or all.",
        {"words": "--one-gpu-each/--all-gpus-each"},
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
    state: Path | None = option(
        None,
        "File with the progress, to resume from (default: next to OUTPUT, else next to the "
        "checkpoint).",
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
    "data": DataSettings, "clean": CleanSettings, "corpus": CorpusSettings,
    "dialogues": DialogueSettings, "launch": LaunchSettings, "average": AverageSettings,
}  # fmt: skip


class Program(NamedTuple):
    """Name the command of a block, and the options that a recipe adds and a block may not have."""

    words: str
    set_by_recipes: tuple[str, ...] = ()


_TRAINING = ("save_dir", "tensorboard_logdir", "log_format")
# block of a configuration → its command; measures have blocks of their names
PROGRAMS = {
    "data": Program("highrank data pieces", ("languages",)),
    "clean": Program("highrank data clean-texts", ("languages",)),
    "corpus": Program("highrank data lm-corpus", ("data", "output")),
    "dialogues": Program("highrank data dialogue-text"),
    "launch": Program("highrank launch"),
    "train": Program("fairseq-train", _TRAINING),
    "finetune": Program("fairseq-train", (*_TRAINING, "finetune_from_model")),
    "generate": Program("fairseq-generate", ("gen_subset", "path", "score_reference")),
    "evaluate": Program("fairseq-eval-lm", ("gen_subset", "path")),
}


_MEASURING = ("split", "output")


def program_of(block: str) -> Program:
    """Return the command of a key of `PROGRAMS` or of a measure; the latter imports torch."""
    if block in PROGRAMS:
        return PROGRAMS[block]
    return Program(find_measure(block).command(block), _MEASURING)


def set_by_recipes(block: str) -> tuple[str, ...]:
    """Return the options that the block of a command or measure may not have."""
    if block in PROGRAMS:
        return PROGRAMS[block].set_by_recipes
    return _MEASURING if block in measure_names() else ()
