"""Provide `highrank results …`: records of runs, and tables of records."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highrank_plugins.cli import make_group
from highrank_plugins.cli.printing import echo_markdown
from highrank_plugins.cli.user_error import user_errors

if TYPE_CHECKING:
    from highrank_plugins.common.score import Score

SAMPLES = 5
DIALOGUES = 3
SHOWN_REFERENCES = 3
_BLEU = [f"bleu{order}_{name}" for order in range(1, 5) for name in ("precision", "recall")]

Record = Annotated[Path, "Record of `highrank results record`."]
_TRAINING = {  # number in a record → its text for people
    "updates": "{:,.0f} updates",
    "wall_seconds": "{:,.0f} s",
    "epochs": "up to epoch {:,.0f}",
    "words_per_second": "{:,.0f} words/s",
    "seconds_per_epoch": "{:,.0f} s per epoch",
    "valid_loss": "validation loss {:.3f}",
    "best_valid_loss": "best validation loss {:.3f}",
    "parameters": "{:,.0f} parameters",
    "peak_memory_gib": "{:.2f} GiB of memory at the peak",
}


def results_table(
    records: Annotated[list[Path], "Records of runs, such as exp/ptb/*/results.json."],
) -> None:
    """Print records of runs as a table.

    Example: highrank results table exp/ptb/*/results.json

    Writes a Markdown table to a file, and draws it on a terminal.

    Two records of one configuration and seed must have different revisions of the code, as when a
    change of the code is compared; `highrank compare` refuses them.
    """
    from highrank_plugins.results import results_table as table

    with user_errors():
        echo_markdown(table.results_table(records), nl=False)


def published(
    task: Annotated[str, "Name of a recipe, e.g. wmt14_en_de."],
    results: Annotated[
        list[Path] | None, "Record of `highrank results record`; may be repeated."
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also print what no run has, tolerances and errata.")
    ] = False,
) -> None:
    """Print the papers' scores and ours.

    Example: highrank results published ptb

    The table has a column for each kind of score: Markdown in a file, drawn on a terminal.
    """
    from highrank_plugins.results.published import table
    from highrank_plugins.results.record import load_record

    with user_errors():
        ours = {str(path.parent): _numbers(load_record(path)) for path in results or []}
        echo_markdown(table(task, ours, everything))


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a record, and parameters and seconds of an epoch where it has them."""
    from highrank_plugins.results.results_table import COSTS

    train = {name: value for name, value in record.get("train", {}).items() if value is not None}
    return record["metrics"] | {name: train[key] for name, key in COSTS.items() if key in train}


def record(
    scores: Annotated[
        Path,
        typer.Option(
            help="Scores of `highrank evaluate score`, or the folder of a model's evaluations."
        ),
    ],
    config: Annotated[Path, typer.Option(help="Configuration of `highrank train configure`.")],
    training: Annotated[
        Path,
        typer.Option(help="The run's --save-dir, with command.sh and train.log or logs/rank0.log."),
    ],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    finetuning: Annotated[
        Path | None, "The --save-dir of the finetuning run, if there was one."
    ] = None,
    paired: Annotated[Path | None, "The paired.json of `highrank evaluate score`."] = None,
    summary: Annotated[
        Path | None, "Write the output of `highrank results lm-summary` as well."
    ] = None,
    data: Annotated[Path | None, "Folder of the binarised data."] = None,
    published: Annotated[str | None, "Recipe whose published scores come first."] = None,
    generated: Annotated[
        list[Path] | None,
        "Output of fairseq-generate for the ledger, as test.txt of split test; may be repeated.",
    ] = None,
) -> None:
    """Write the record of a run.

    Example: highrank results record --scores scores.json --config config.yaml
    --training train --output results.json

    The record holds metrics, signature, configuration, versions, revision, hardware and speed. With
    --data it also holds the ledger: the sentences and tokens that each stage took and left out, and
    why. A result that does not cover the whole text is refused. --generated adds the stage that
    generates.

    The folder of a language model's evaluations has test.log and valid.log of fairseq-eval-lm, and
    the results of its measures. It may have train.log. With --finetuning it also has
    before_finetuning_test.log and before_finetuning_valid.log, of the first run's checkpoint.
    """
    from highrank_plugins.common.files import write_json, write_text
    from highrank_plugins.results import ledger
    from highrank_plugins.results.perplexity import dictionary
    from highrank_plugins.results.published import table
    from highrank_plugins.results.record import make_record
    from highrank_plugins.training import configuration, training_log

    with user_errors():
        folders = [training] if finetuning is None else [training, finetuning]
        settings = configuration.load(config)
        found = _scores(scores, finetuning is not None, data)
        counts: ledger.Ledger = {}
        if data is not None:
            target = settings.train.get("target_lang")
            counts = ledger.read_ledger(data, training, target, finetuning)
            if generated and target is None:
                raise ValueError("--generated needs a configuration with train.target_lang")
            folder = scores if scores.is_dir() else scores.parent
            ledger.add_generated(counts, generated or [], str(target))
            ledger.add_scored(counts, found, target, folder / f"test.{target}")
            ledger.add_measured(counts, folder, target)
        result = make_record(
            found,
            settings,
            *map(training_log.read_training, folders),
            paired=None if paired is None else _paired(paired),
            data=_key(data),
            ledger=counts,
            vocabulary=dictionary(data) if data and scores.is_dir() else None,
        )
        write_json(output, result)
        if summary is not None:
            ours = {str(output.parent): _numbers(result)}
            papers = [] if published is None else [table(published, ours)]
            write_text(summary, "\n".join([*papers, perplexities(result), ""]))


def _key(data: Path | None) -> str | None:
    """Return the key that a recipe's stage wrote about its inputs."""
    key = None if data is None else data / ".key"
    return key.read_text(encoding="utf-8").strip() if key is not None and key.is_file() else None


def _scores(path: Path, finetuned: bool, data: Path | None = None) -> "dict[str, Score]":
    """Return the scores in a file, or in the folder of a model's evaluations."""
    scores = _evaluations(path, data, finetuned) if path.is_dir() else _written_scores(path)
    for name, score in scores.items():
        if not isinstance(score.value, int | float) or not math.isfinite(score.value):
            raise ValueError(
                f"{path}: {name} is {score.value}, not a finite number: evaluate it again, with "
                "another checkpoint if this one has diverged"
            )
    return scores


def _evaluations(path: Path, data: Path | None, finetuned: bool) -> "dict[str, Score]":
    from highrank_plugins.results import perplexity
    from highrank_plugins.results.measures import read_measures

    scores: dict[str, Score] = {}
    for split in ("test", "valid", "train"):
        if split != "train" or (path / "train.log").exists():
            scores |= perplexity.read_eval_lm(path / f"{split}.log", split)
    if finetuned:
        scores |= perplexity.before_finetuning(path)
    if data is not None and (unigram := perplexity.unigram_perplexity(data)):
        scores[perplexity.UNIGRAM] = unigram
    return scores | read_measures(path, "test") | read_measures(path / "valid", "valid")


def _written_scores(path: Path) -> "dict[str, Score]":
    """Return the scores in a file of `highrank evaluate score`."""
    from highrank_plugins.common.files import read_json
    from highrank_plugins.common.score import Score

    found = read_json(path)
    try:
        if scores := {name: Score(**values) for name, values in found.items()}:
            return scores
    except (AttributeError, TypeError):
        pass
    raise ValueError(
        f"{path}: no scores with value and signature; write the file by `highrank evaluate score`"
    )


def _paired(path: Path) -> dict[str, Any]:
    from highrank_plugins.common.files import read_json

    found = read_json(path)
    if not isinstance(found, dict) or not {"scores", "signature"} <= found.keys():
        raise ValueError(
            f"{path}: not a paired test; write the file by `highrank evaluate score --against`"
        )
    return found


def lm_summary(
    results: Record,
) -> None:
    """Print all perplexities and the training speed.

    Example: highrank results lm-summary results.json

    The last line is the test perplexity.
    """
    from highrank_plugins.results.record import load_record

    with user_errors():
        result = load_record(results, complete=True, metrics=["test_perplexity"])
    typer.echo(perplexities(result))


def perplexities(result: dict[str, Any]) -> str:
    """Return the summary of a language model's record."""
    from highrank_plugins.results.doubts import doubts

    metrics, signatures = result["metrics"], result["signatures"]
    lines = [f"{name:>24}  {value}  {signatures.get(name, '')}" for name, value in metrics.items()]
    last = f"test perplexity {metrics['test_perplexity']} {result['signature']}"
    return "\n".join([*lines, *_ledger(result), _speed(result), *doubts(result), last])


def summary(
    results: Record,
    texts: Annotated[list[Path], "Source, reference and translations."],
) -> None:
    """Print sample translations, training speed and scores.

    Example: highrank results summary results.json test.en test.de mos.de

    The last line is the score.
    """
    from highrank_plugins.results.doubts import doubts
    from highrank_plugins.results.record import load_record
    from highrank_plugins.results.scoring import read_together

    with user_errors():
        result = load_record(results, complete=True, metrics=["chrf", "sacrebleu"])
        sentences = read_together(texts)
    for index in range(SAMPLES):
        names = ("source", "reference", "translation")
        chosen = sentences[(2 * index + 1) * len(sentences) // (2 * SAMPLES)]
        typer.echo("\n".join(f"{n:>12}  {s}" for n, s in zip(names, chosen, strict=True)) + "\n")
    for line in [*_ledger(result), _speed(result), *doubts(result)]:
        typer.echo(line)
    if "paired" in result:
        other, own = result["paired"]["scores"]
        typer.echo(
            f"against {other['system']}, {other['score']:.2f}: p = {own['p_value']:.4f} "
            f"{result['paired']['signature']}"
        )
    typer.echo(f"chrF {result['metrics']['chrf']} {result['signatures']['chrf']}")
    typer.echo(f"sacreBLEU {result['metrics']['sacrebleu']} {result['signature']}")


def _ledger(result: dict[str, Any]) -> list[str]:
    from highrank_plugins.results.ledger import describe

    return describe(result.get("ledger", {}))


def _speed(result: dict[str, Any]) -> str:
    numbers = ((name, value) for name, value in result["train"].items() if value is not None)
    training = (_TRAINING.get(name, f"{name} {{:,.10g}}").format(value) for name, value in numbers)
    return f"training: {', '.join(training)}"


def dialogue_summary(
    results: Record,
    generated: Annotated[Path, "Output of fairseq-generate --nbest N."],
    contexts: Annotated[Path, "Input of fairseq-generate, one per line."],
    references: Annotated[Path, "References: one line per context, separated by tabs."],
) -> None:
    """Print sample responses, precision and recall.

    Example: highrank results dialogue-summary results.json gen.txt contexts refs

    The last line is the perplexity.
    """
    from highrank_plugins.results.record import metric_of
    from highrank_plugins.results.scoring import read_nbest, read_together

    with user_errors():
        bleu = {name: metric_of(results, name) for name in _BLEU}
        perplexity = metric_of(results, "test_perplexity")
        pairs = read_together([contexts, references])
        hypotheses = read_nbest(generated, len(pairs))
        rows = [
            (source, good, found) for (source, good), found in zip(pairs, hypotheses, strict=True)
        ]
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


results = make_group(
    {
        "table": results_table,
        "published": published,
        "record": record,
    },
    {
        "dialogue-summary": dialogue_summary,
        "lm-summary": lm_summary,
        "summary": summary,
    },
)
