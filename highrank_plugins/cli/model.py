"""Provide `highrank model …`: checkpoints and model folders."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import UserDir, require_file
from highrank_plugins.common.blocks import option
from highrank_plugins.training import checkpoints


def average(
    directory: Annotated[Path, "Folder of checkpoints (--save-dir of a run)."],
    output: Path = option(..., "Checkpoint file to write."),
    last: int | None = option(None, "Average the N newest checkpoints (default: 5).", ge=1),
    best: int | None = option(None, "Average the N with the best validation score.", ge=1),
) -> None:
    """Average the weights of a training run's checkpoints.

    Example: highrank model average exp/train --last 5 --output average.pt

    Holds at most two checkpoints in memory.
    """
    require_file(output)
    if output.exists() and output.resolve().parent == directory.resolve():
        raise ValueError(
            f"--output {output} is a file of the training run: name another file, because an "
            "average cannot be resumed from"
        )
    if best is None:
        paths = checkpoints.last_checkpoints(directory, last or 5)
    elif last is not None:
        raise ValueError("--last and --best exclude each other")
    else:
        paths = checkpoints.best_checkpoints(directory, best)
    typer.echo(f"averaging {', '.join(path.name for path in paths)} of {directory}")
    checkpoints.average_checkpoints(paths, output)


def best_checkpoint(
    directories: Annotated[list[Path], "Folders of checkpoints (--save-dir of each run)."],
) -> None:
    """Print the checkpoint_best.pt with the best score.

    Example: highrank model best-checkpoint exp/ptb/mos-1/train exp/ptb/mos-2/train

    Compares the scores of --best-checkpoint-metric, the validation loss by default.
    """
    typer.echo(checkpoints.best_checkpoint(directories))


def export(
    checkpoint: Annotated[Path, "Checkpoint of fairseq-train or `highrank model average`."],
    output: Path = option(..., "New folder for the model."),
    data: Path | None = option(None, "Folder with the dictionaries (default: the training run's)."),
    pieces: Path | None = option(None, "SentencePiece's model, or subword-nmt's codes."),
    licence: str = option("unknown", "Licence to name on the model card.", {"words": "--license"}),
    to: Literal["highrank", "huggingface"] = option(
        "highrank", "Form: for this package, or for transformers (a Transformer with a softmax)."
    ),
    user_dir: UserDir = None,
) -> None:
    """Write a model folder with safetensors and a card.

    Example: highrank model export checkpoint_best.pt --output my-model

    The folder also holds configuration, dictionaries, pieces and a certificate, see `certify`.
    With --to huggingface it holds a model and a tokenizer that transformers loads.
    """
    from highrank_plugins.reports.model_folder import export_model, read_parts

    if to == "highrank":
        export_model(checkpoint, output, data, licence, pieces)
    else:
        from highrank_plugins.reports.fsmt_folder import export_fsmt

        export_fsmt(read_parts(checkpoint, output, data, pieces), output, licence, pieces)
    typer.echo(f"{output}: {', '.join(sorted(path.name for path in output.iterdir()))}")


def import_model(
    exported: Annotated[Path, "Folder of `highrank model export`."],
    output: Path = option(..., "Checkpoint file to write."),
    user_dir: UserDir = None,
) -> None:
    """Write an exported model as a checkpoint for fairseq.

    Example: highrank model import my-model --output model.pt
    """
    from highrank_plugins.reports import model_folder

    model_folder.import_model(exported, output)
    typer.echo(output)


def certify(
    served: Annotated[Path, "Checkpoint, or folder of `highrank model export`."],
    user_dir: UserDir = None,
) -> None:
    """Check that a model computes what was certified.

    Example: highrank model certify my-model

    A folder has its certificate from the export; a checkpoint gets one at the first call, in
    NAME.certificate.json. Log-probabilities may differ by 1e-4, in half precision by 1e-2.
    """
    from highrank_plugins.reports import model_folder

    typer.echo(model_folder.certify(served))


model = make_group(
    {"average": average, "export": export, "import": import_model, "certify": certify},
    {"best-checkpoint": best_checkpoint},
)
