"""Provide `highrank results record`, and `highrank published`, the papers' scores."""

from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli import as_command, make_group
from highrank_plugins.cli.compare import compare
from highrank_plugins.cli.options import print_tables
from highrank_plugins.common.blocks import BlockOptions, option


def published(
    task: Annotated[str, "Name of a recipe, e.g. wmt14_en_de."],
    results: list[Path] | None = option(
        None, "Record of `highrank results record`; may be repeated."
    ),
    everything: bool = option(
        False, "Also print what no run has, tolerances and errata.", {"words": "--all"}
    ),
) -> None:
    """Print the papers' scores and ours.

    Example: highrank published ptb

    The table has a column for each kind of score: Markdown in a file, drawn on a terminal.
    """
    from highrank_plugins.reports.comparisons import published_table
    from highrank_plugins.results.record import load_record

    ours = {str(path.parent): _numbers(load_record(path)) for path in results or []}
    print_tables([published_table(task, ours, everything)])


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a record, and parameters and seconds of an epoch where it has them."""
    train, names = (
        record.get("train", {}),
        {"parameters": "parameters", "s/epoch": "seconds_per_epoch"},
    )
    costs = {heading: train.get(name) for heading, name in names.items()}
    return record["metrics"] | {name: cost for name, cost in costs.items() if cost is not None}


class RecordOptions(BlockOptions):
    """Name what a record is made from."""

    scores: Path = option(
        ..., "Scores of `highrank evaluate score`, or the folder of a model's evaluations."
    )
    config: Path = option(..., "Configuration of `highrank train configure`.")
    training: Path = option(..., "The run's --save-dir, with command.sh and metrics.jsonl.")
    output: Path = option(..., "JSON file to write.")
    finetuning: Path | None = option(
        None, "The --save-dir of the finetuning run, if there was one."
    )
    paired: Path | None = option(None, "The paired.json of `highrank evaluate score`.")
    summary: Path | None = option(None, "File for the summary (default: print it).")
    samples: list[Path] | None = option(
        None,
        "Texts for samples in the summary: source, references, and the model's, in this order.",
    )
    data: Path | None = option(None, "Folder of the binarised data.")
    published: str | None = option(None, "Recipe whose published scores come first.")
    generated: list[Path] | None = option(
        None,
        "Output of fairseq-generate for the ledger, as test.txt of split test; may be repeated.",
    )


def record(options: RecordOptions) -> None:
    """Write the record of a run, and a summary for people.

    Example: highrank results record --scores scores.json --config config.yaml
    --training train --output results.json

    The record holds metrics, signature, configuration, versions, revision, hardware and speed. With
    --data it also holds the ledger: the sentences and tokens that each stage took and left out, and
    why. A result that does not cover the whole text is refused. --generated adds the stage that
    generates. The last line of the summary is the score.

    The folder of a language model's evaluations has test.log and valid.log of fairseq-eval-lm, and
    the results of its measures. It may have train.log. With --finetuning it also has
    before_finetuning_test.log and before_finetuning_valid.log, of the first run's checkpoint.
    """
    from highrank_plugins.common.files import write_json, write_text
    from highrank_plugins.reports.comparisons import published_table
    from highrank_plugins.reports.tables import to_markdown
    from highrank_plugins.results.summary import summary

    result = _record_of(options)
    text = summary(result, options.samples or [])
    write_json(options.output, result)
    if options.published is not None:
        ours = {str(options.output.parent): _numbers(result)}
        text = f"{to_markdown([published_table(options.published, ours)])}\n{text}"
    if options.summary is None:
        typer.echo(text)
    else:
        write_text(options.summary, f"{text}\n")


def _record_of(options: RecordOptions) -> dict[str, Any]:
    from highrank_plugins.results import summary as summaries
    from highrank_plugins.results.perplexity import dictionary
    from highrank_plugins.results.record import make_record, read_training
    from highrank_plugins.training.configuration import load

    data, scores = options.data, options.scores
    folders = list(filter(None, (options.training, options.finetuning)))
    settings = load(options.config)
    found = summaries.read_scores(scores, options.finetuning is not None, data)
    key = None if data is None else data / ".key"  # of the inputs, by a recipe's stage
    counts = {}
    if data is not None:
        target = settings.train.get("target_lang")
        generated = options.generated or []
        counts = summaries.run_ledger(data, folders, found, scores, generated, target)
    return make_record(
        found,
        settings,
        *map(read_training, folders),
        data=key.read_text(encoding="utf-8").strip() if key and key.is_file() else None,
        vocabulary=dictionary(data) if data and scores.is_dir() else None,
        ledger=counts,
        paired=None if options.paired is None else summaries.read_paired(options.paired),
    )


def table(records: Annotated[list[Path], "Records of runs."]) -> None:
    """Print a row for each record, as `highrank compare --runs`.

    Example: highrank results table exp/*/results.json
    """
    as_command(compare)([*map(str, records), "--runs"], standalone_mode=False)


# the second and third are `compare --runs` and `published`, for scripts about records alone
results = make_group({"record": record}, {"table": table, "published": published})
