"""`highrank results summary` and its like: the last lines of a recipe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli.user_error import user_errors

SAMPLES = 5
DIALOGUES = 3
SHOWN_REFERENCES = 3
_BLEU = [f"bleu{order}_{name}" for order in range(1, 5) for name in ("precision", "recall")]


def lm_summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank results record`.")],
) -> None:
    """Print all perplexities, the speed of training, and that of the test set as the last line."""
    from highrank_plugins.results.results_table import read_record

    with user_errors():
        result = read_record(results)
    typer.echo(perplexities(result))


def perplexities(result: dict[str, Any]) -> str:
    """Return the summary of a language model's record."""
    metrics, signatures = result["metrics"], result["signatures"]
    lines = [f"{name:>24}  {value}  {signatures[name]}" for name, value in metrics.items()]
    last = f"test perplexity {metrics['test_perplexity']} {result['signature']}"
    return "\n".join([*lines, _speed(result), last])


def summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank results record`.")],
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


def dialogue_summary(
    results: Annotated[Path, typer.Argument(help="Written by `highrank results record`.")],
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
    for index in range(DIALOGUES):
        source, known, found = rows[(2 * index + 1) * len(rows) // (2 * DIALOGUES)]
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
