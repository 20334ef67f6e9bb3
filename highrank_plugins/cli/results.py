"""`highrank score`, `lm-score`, `record`, `summary` and `lm-summary`: what a run came to."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli.user_error import user_errors

SAMPLES = 5


def score(
    generated: Annotated[Path, typer.Argument(help="Standard output of fairseq-generate.")],
    reference: Annotated[Path, typer.Argument(help="Untouched references, a line each.")],
    output: Annotated[Path, typer.Option(help="JSON file for values and signatures.")],
    hypotheses: Annotated[Path, typer.Option(help="File for the translations, a line each.")],
    tokenise: Annotated[
        str | None, typer.Option(help="Also BLEU of Moses' tokens of this language (de, fr, …).")
    ] = None,
    compound_split: Annotated[
        bool, typer.Option("--compound-split", help="And of these split at hyphens; German only.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(help="Another system's translations, a line each, for a paired bootstrap."),
    ] = None,
    measures: Annotated[
        Path | None, typer.Option(help="Folder with results of highrank analyse, to be added.")
    ] = None,
) -> None:
    """Compute sacreBLEU and chrF; every input must have its translation.

    The paired test, with --against, goes into paired.json beside the output.
    """
    from highrank_plugins.common.files import write_json, write_text
    from highrank_plugins.results import measures as model_measures
    from highrank_plugins.results import scoring, tokenised_bleu

    with user_errors():
        if compound_split:
            tokenised_bleu.check_compounds(tokenise)
        references = scoring.read_lines(reference)
        translations = scoring.read_hypotheses(generated, len(references))
        scores = scoring.score(translations, references)
        if tokenise is not None:
            scores |= tokenised_bleu.score(
                translations, references, tokenise, compound_split=compound_split
            )
        if against is not None:
            paired = scoring.compare(against, generated, translations, references)
            write_json(output.with_name("paired.json"), paired)
            typer.echo(json.dumps(paired, ensure_ascii=False))
        if measures is not None:
            scores |= model_measures.read_measures(measures, "test")
        write_text(hypotheses, "".join(f"{line}\n" for line in translations))
        write_json(output, {name: asdict(value) for name, value in scores.items()})


def lm_score(
    directory: Annotated[Path, typer.Argument(help="Logs of fairseq-eval-lm, named by split.")],
    output: Annotated[Path, typer.Option(help="JSON file for values and signatures.")],
) -> None:
    """Collect the perplexities and measures that the evaluations of a language model have left."""
    from highrank_plugins.common.files import write_json
    from highrank_plugins.results import measures as model_measures
    from highrank_plugins.results import perplexity, scoring

    with user_errors():
        scores: dict[str, scoring.Score] = {}
        for split in ("test", "valid"):
            scores |= perplexity.read_eval_lm(directory / f"{split}.log", split)
        scores |= model_measures.read_measures(directory, "test")
        write_json(output, {name: asdict(value) for name, value in scores.items()})


def lm_summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank record`.")],
) -> None:
    """Print all perplexities, the speed of training, and that of the test set as the last line."""
    from highrank_plugins.results.results_table import read_record

    with user_errors():
        result = read_record(results)
    for name, value in result["metrics"].items():
        typer.echo(f"{name:>24}  {value}  {result['signatures'][name]}")
    typer.echo(_speed(result))
    typer.echo(f"test perplexity {result['metrics']['test_perplexity']} {result['signature']}")


def best_checkpoint(
    directories: Annotated[list[Path], typer.Argument(help="--save-dir of each training.")],
) -> None:
    """Print the checkpoint_best.pt with the lowest validation loss."""
    from highrank_plugins.training.checkpoint_file import best_checkpoint

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        typer.echo(best_checkpoint(directories))


def record(
    scores: Annotated[Path, typer.Option(help="Written by `highrank score`.")],
    config: Annotated[Path, typer.Option(help="Written by `highrank configure`.")],
    training: Annotated[
        Path, typer.Option(help="Its --save-dir, with command.sh and train.log or logs/rank0.log.")
    ],
    output: Annotated[Path, typer.Option(help="The JSON file to write.")],
    finetuning: Annotated[Path | None, typer.Option(help="That of a second training.")] = None,
    paired: Annotated[Path | None, typer.Option(help="paired.json of `highrank score`.")] = None,
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


def summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank record`.")],
    texts: Annotated[list[Path], typer.Argument(help="Source, reference and translations.")],
) -> None:
    """Print sample translations, the speed of training, and the score as the last line."""
    from highrank_plugins.results.results_table import read_record
    from highrank_plugins.results.scoring import read_lines

    with user_errors():
        result = read_record(results)
        sentences = list(zip(*map(read_lines, texts), strict=True))
    for index in range(SAMPLES):
        names = ("source", "reference", "translation")
        chosen = sentences[(2 * index + 1) * len(sentences) // (2 * SAMPLES)]
        typer.echo("\n".join(f"{n:>12}  {s}" for n, s in zip(names, chosen, strict=True)) + "\n")
    typer.echo(_speed(result))
    if "paired" in result:
        other, own = result["paired"]["scores"]
        typer.echo(
            f"against {other['system']}, {other['score']:.2f}: p = {own['p_value']:.4f} "
            f"{result['paired']['signature']}"
        )
    typer.echo(f"chrF {result['metrics']['chrf']} {result['signatures']['chrf']}")
    typer.echo(f"sacreBLEU {result['metrics']['sacrebleu']} {result['signature']}")


def _speed(result: dict[str, Any]) -> str:
    training = ", ".join(f"{name} {value:,.10g}" for name, value in result["train"].items())
    return f"training: {training}"
