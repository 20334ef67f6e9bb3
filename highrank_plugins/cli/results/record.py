"""`highrank results record`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highrank_plugins.cli.results.summary import perplexities
from highrank_plugins.cli.user_error import user_errors

if TYPE_CHECKING:
    from highrank_plugins.common.score import Score


def record(
    scores: Annotated[
        Path,
        typer.Option(help="Of `highrank evaluate score`, or the folder of a model's evaluations."),
    ],
    config: Annotated[Path, typer.Option(help="Written by `highrank train configure`.")],
    training: Annotated[
        Path, typer.Option(help="Its --save-dir, with command.sh and train.log or logs/rank0.log.")
    ],
    output: Annotated[Path, typer.Option(help="The JSON file to write.")],
    finetuning: Annotated[Path | None, typer.Option(help="That of a second training.")] = None,
    paired: Annotated[
        Path | None, typer.Option(help="paired.json of `highrank evaluate score`.")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Also write what `highrank results lm-summary` prints.")
    ] = None,
    published: Annotated[
        str | None, typer.Option(help="A recipe, whose published scores the summary begins with.")
    ] = None,
) -> None:
    """Write the record of a run: metrics, signature, config, versions, git, hardware, speed.

    The folder of a language model's evaluations has test.log and valid.log of fairseq-eval-lm, and
    the results of its measures.
    """
    from highrank_plugins.common.files import write_json, write_text
    from highrank_plugins.results.published import table
    from highrank_plugins.results.record import make_record
    from highrank_plugins.training import configuration, training_log

    with user_errors():
        folders = [training] if finetuning is None else [training, finetuning]
        result = make_record(
            _scores(scores),
            configuration.load(config),
            *map(training_log.read_training, folders),
            paired=None if paired is None else json.loads(paired.read_text(encoding="utf-8")),
        )
        write_json(output, result)
        if summary is not None:
            ours = {str(output.parent): result["metrics"]}
            papers = [] if published is None else [table(published, ours)]
            write_text(summary, "\n".join([*papers, perplexities(result), ""]))


def _scores(path: Path) -> "dict[str, Score]":
    from highrank_plugins.common.score import Score
    from highrank_plugins.results import perplexity
    from highrank_plugins.results.measures import read_measures

    if not path.is_dir():
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: Score(**values) for name, values in found.items()}
    scores: dict[str, Score] = {}
    for split in ("test", "valid"):
        scores |= perplexity.read_eval_lm(path / f"{split}.log", split)
    return scores | read_measures(path, "test")
