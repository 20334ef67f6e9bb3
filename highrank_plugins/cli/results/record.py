"""`highrank results record`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def record(
    scores: Annotated[Path, typer.Option(help="Written by `highrank evaluate score`.")],
    config: Annotated[Path, typer.Option(help="Written by `highrank train configure`.")],
    training: Annotated[
        Path, typer.Option(help="Its --save-dir, with command.sh and train.log or logs/rank0.log.")
    ],
    output: Annotated[Path, typer.Option(help="The JSON file to write.")],
    finetuning: Annotated[Path | None, typer.Option(help="That of a second training.")] = None,
    paired: Annotated[
        Path | None, typer.Option(help="paired.json of `highrank evaluate score`.")
    ] = None,
) -> None:
    """Write the record of a run: metrics, signature, config, versions, git, hardware, speed."""
    from highrank_plugins.common.files import write_json
    from highrank_plugins.results import scoring
    from highrank_plugins.results.record import make_record
    from highrank_plugins.training import configuration, training_log

    with user_errors():
        found = json.loads(scores.read_text(encoding="utf-8"))
        folders = [training] if finetuning is None else [training, finetuning]
        result = make_record(
            {name: scoring.Score(**values) for name, values in found.items()},
            configuration.load(config),
            *map(training_log.read_training, folders),
            paired=None if paired is None else json.loads(paired.read_text(encoding="utf-8")),
        )
        write_json(output, result)
