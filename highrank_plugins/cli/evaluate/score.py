"""`highrank evaluate score` and `dialogue-score`: from outputs on a test set to scores."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def score(
    generated: Annotated[
        Path, typer.Argument(help="Standard output of fairseq-generate, or a translation a line.")
    ],
    reference: Annotated[Path, typer.Argument(help="Untouched references, a line each.")],
    output: Annotated[
        Path | None,
        typer.Option(help="JSON file for values and signatures (default: print them)."),
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="File for the translations, a line each.")
    ] = None,
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

    The paired test, with --against, is printed; it also goes into paired.json beside the output.
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
            if output is not None:
                write_json(output.with_name("paired.json"), paired)
            typer.echo(json.dumps(paired, ensure_ascii=False))
        if measures is not None:
            scores |= model_measures.read_measures(measures, "test")
        if hypotheses is not None:
            write_text(hypotheses, "".join(f"{line}\n" for line in translations))
        if output is not None:
            write_json(output, {name: asdict(value) for name, value in scores.items()})
            return
        for name, found in scores.items():
            typer.echo(f"{name} {found.value} {found.signature}")


def dialogue_score(
    generated: Annotated[Path, typer.Argument(help="Output of fairseq-generate --nbest N.")],
    references: Annotated[Path, typer.Argument(help="A line per context, tabs between them.")],
    output: Annotated[Path, typer.Option(help="JSON file for values and signatures.")],
    scored: Annotated[
        Path | None, typer.Option(help="Output of fairseq-generate --score-reference.")
    ] = None,
    responses: Annotated[Path | None, typer.Option(help="The responses that it scored.")] = None,
) -> None:
    """Compute precision and recall of BLEU-1 to BLEU-4, and the perplexity of responses."""
    from highrank_plugins.common.files import write_json
    from highrank_plugins.results import scoring
    from highrank_plugins.results.dialogue_scoring import dialogue_scores
    from highrank_plugins.results.response_perplexity import response_perplexity

    with user_errors():
        if (scored is None) != (responses is None):
            raise ValueError("--scored and --responses belong together: give both or none")
        scores = {}
        if scored and responses:
            scores["test_perplexity"] = response_perplexity(scored, responses)
        lines = [line.split("\t") for line in scoring.read_lines(references)]
        hypotheses = scoring.read_nbest(generated, len(lines))
        words = [[text.split() for text in texts] for texts in hypotheses]
        good = [[text.split() for text in texts] for texts in lines]
        scores |= dialogue_scores(list(zip(words, good, strict=True)))
        write_json(output, {name: asdict(value) for name, value in scores.items()})
