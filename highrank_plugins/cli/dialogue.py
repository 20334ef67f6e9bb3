"""`highrank dialogue-files`, `-text`, `-score` and `-summary`: responses in dialogues."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors

SAMPLES = 3
SHOWN_REFERENCES = 3
_BLEU = [f"bleu{order}_{name}" for order in range(1, 5) for name in ("precision", "recall")]


Corpus = Annotated[Path, typer.Argument(help="Folder with the corpus of Zhao et al. 2017.")]


def dialogue_files(corpus: Corpus) -> None:
    """Print the files that `highrank dialogue-text` reads, a line each."""
    from highrank_plugins.data.dialogue.text import input_files

    with user_errors():
        typer.echo("\n".join(map(str, input_files(corpus))))


def dialogue_text(
    corpus: Corpus,
    output: Annotated[Path, typer.Argument(help="Directory for contexts and responses.")],
    context: Annotated[int, typer.Option(min=1, help="Utterances that a response sees.")] = 9,
) -> None:
    """Write dialogues as contexts, responses and references, a line each."""
    from highrank_plugins.data.dialogue.text import write_parallel

    with user_errors():
        for name, counts in write_parallel(corpus, output, context).items():
            typer.echo(f"{name}: {counts.contexts} contexts, {counts.references} references")


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


def dialogue_summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank record`.")],
    generated: Annotated[Path, typer.Argument(help="Output of fairseq-generate --nbest N.")],
    contexts: Annotated[Path, typer.Argument(help="Its input, a line each.")],
    references: Annotated[Path, typer.Argument(help="A line per context, tabs between them.")],
) -> None:
    """Print sample responses, then precision and recall, and the perplexity as the last line."""
    from highrank_plugins.results.record import metric_of
    from highrank_plugins.results.scoring import read_lines, read_nbest

    with user_errors():
        bleu = {name: metric_of(results, name) for name in _BLEU}
        perplexity = metric_of(results, "test_perplexity")
        sources, good = read_lines(contexts), read_lines(references)
        hypotheses = read_nbest(generated, len(sources))
        rows = list(zip(sources, good, hypotheses, strict=True))
    for index in range(SAMPLES):
        source, known, found = rows[(2 * index + 1) * len(rows) // (2 * SAMPLES)]
        typer.echo(f"   context  {source}")
        for reference in known.split("\t")[:SHOWN_REFERENCES]:
            typer.echo(f" reference  {reference}")
        for hypothesis in found:
            typer.echo(f"  response  {hypothesis}")
        typer.echo()
    for order in range(1, 5):
        precision, recall = bleu[f"bleu{order}_precision"], bleu[f"bleu{order}_recall"]
        typer.echo(f"BLEU-{order}  precision {precision:.3f}  recall {recall:.3f}")
    typer.echo(f"test perplexity {perplexity}")
