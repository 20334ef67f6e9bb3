"""Provide `highrank results record`, and `highrank published`, the papers' scores."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highrank_plugins.cli import make_group
from highrank_plugins.cli.compare import compare
from highrank_plugins.cli.printing import print_tables

if TYPE_CHECKING:
    from highrank_plugins.common.score import Score

SAMPLES = 5
DIALOGUES = 3
SHOWN_REFERENCES = 3


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

    Example: highrank published ptb

    The table has a column for each kind of score: Markdown in a file, drawn on a terminal.
    """
    from highrank_plugins.reports.comparison_tables import published_table
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


def record(
    scores: Annotated[
        Path,
        typer.Option(
            help="Scores of `highrank evaluate score`, or the folder of a model's evaluations."
        ),
    ],
    config: Annotated[Path, typer.Option(help="Configuration of `highrank train configure`.")],
    training: Annotated[
        Path, typer.Option(help="The run's --save-dir, with command.sh and metrics.jsonl.")
    ],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    finetuning: Annotated[
        Path | None, "The --save-dir of the finetuning run, if there was one."
    ] = None,
    paired: Annotated[Path | None, "The paired.json of `highrank evaluate score`."] = None,
    summary: Annotated[Path | None, "File for the summary (default: print it)."] = None,
    samples: Annotated[
        list[Path] | None,
        "Texts for samples in the summary: source, references, and the model's, in this order.",
    ] = None,
    data: Annotated[Path | None, "Folder of the binarised data."] = None,
    published: Annotated[str | None, "Recipe whose published scores come first."] = None,
    generated: Annotated[
        list[Path] | None,
        "Output of fairseq-generate for the ledger, as test.txt of split test; may be repeated.",
    ] = None,
) -> None:
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
    from highrank_plugins.reports.comparison_tables import published_table
    from highrank_plugins.reports.tables import to_markdown
    from highrank_plugins.results.perplexity import dictionary
    from highrank_plugins.results.record import make_record, read_training
    from highrank_plugins.training import configuration

    folders = [training] if finetuning is None else [training, finetuning]
    settings = configuration.load(config)
    found = _scores(scores, finetuning is not None, data)
    result = make_record(
        found,
        settings,
        *map(read_training, folders),
        data=_key(data),
        vocabulary=dictionary(data) if data and scores.is_dir() else None,
        ledger=_ledger(
            data, folders, found, scores, generated or [], settings.train.get("target_lang")
        ),
        paired=None if paired is None else _paired(paired),
    )
    text = _summary(result, samples or [])
    write_json(output, result)
    if published is not None:
        ours = {str(output.parent): _numbers(result)}
        text = f"{to_markdown([published_table(published, ours)])}\n{text}"
    if summary is None:
        typer.echo(text)
    else:
        write_text(summary, f"{text}\n")


def _ledger(
    data: Path | None,
    folders: list[Path],
    found: "dict[str, Score]",
    scores: Path,
    generated: list[Path],
    target: str | None,
) -> dict[str, Any]:
    from highrank_plugins.results import ledger

    if data is None:
        return {}
    counts = ledger.read_ledger(data, folders[0], target, *folders[1:])
    if generated and target is None:
        raise ValueError("--generated needs a configuration with train.target_lang")
    folder = scores if scores.is_dir() else scores.parent
    ledger.add_generated(counts, generated, str(target))
    ledger.add_scored(counts, found, target, folder / f"test.{target}")
    ledger.add_measured(counts, folder, target)
    return counts


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

    scores: dict[str, Score] = {}
    for split in ("test", "valid", "train"):
        if split != "train" or (path / "train.log").exists():
            scores |= perplexity.read_eval_lm(path / f"{split}.log", split)
    if finetuned:
        scores |= perplexity.before_finetuning(path)
    if data is not None and (unigram := perplexity.unigram_perplexity(data)):
        scores[perplexity.UNIGRAM] = unigram
    for split, folder in (("test", path), ("valid", path / "valid")):
        scores |= perplexity.read_measures(folder, split)
    return scores


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


def _summary(result: dict[str, Any], texts: list[Path]) -> str:
    """Return samples, the ledger, the training's numbers, doubts and, at the end, the score."""
    from highrank_plugins.results.doubts import doubts
    from highrank_plugins.results.ledger import describe
    from highrank_plugins.results.metrics import metric_named

    metrics, signatures = result["metrics"], result["signatures"]
    if len(texts) not in (0, 3):
        raise ValueError("--samples: give three texts: source, references, and the model's")
    lines = _dialogues(texts) if "bleu1_precision" in metrics else _translations(texts)
    known = ("chrf", "sacrebleu")
    if not {*known} <= metrics.keys():
        lines += [f"{name:>24}  {value}  {signatures[name]}" for name, value in metrics.items()]
    lines += describe(result.get("ledger", {}))
    numbers = {name: value for name, value in result["train"].items() if value is not None}
    said = ((metric_named(name).text or f"{name} {{:,.10g}}", n) for name, n in numbers.items())
    lines += [f"training: {', '.join(text.format(number) for text, number in said)}"]
    lines += doubts(result)
    if "paired" in result:
        other, own = result["paired"]["scores"]
        signature = result["paired"]["signature"]
        against = f"against {other['system']}, {other['score']:.2f}"
        lines.append(f"{against}: p = {own['p_value']:.4f} {signature}")
    last = {"chrf": "chrF", "sacrebleu": "sacreBLEU", "test_perplexity": "test perplexity"}
    for name in filter(metrics.__contains__, known if "sacrebleu" in metrics else last):
        lines.append(f"{last[name]} {metrics[name]} {signatures[name]}")
    return "\n".join(lines)


def _spread(texts: list[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """Return some lines, spread evenly over a text."""
    places = ((2 * index + 1) * len(texts) // (2 * count) for index in range(count))
    return [texts[place] for place in places]


def _translations(texts: list[Path]) -> list[str]:
    from highrank_plugins.results.scoring import read_together

    names = ("source", "reference", "translation")
    return [
        "\n".join(f"{n:>12}  {s}" for n, s in zip(names, chosen, strict=True)) + "\n"
        for chosen in (_spread(read_together(texts), SAMPLES) if texts else [])
    ]


def _dialogues(texts: list[Path]) -> list[str]:
    """Return samples of contexts, references of a line each, and responses of fairseq-generate."""
    from highrank_plugins.results.scoring import read_nbest, read_together

    lines = []
    pairs = read_together(texts[:2]) if texts else []
    found = list(zip(pairs, read_nbest(texts[2], len(pairs)), strict=True)) if texts else []
    for (source, references), responses in _spread(found, DIALOGUES) if found else []:
        lines.append(f"   context  {source}")
        lines += [f" reference  {one}" for one in references.split("\t")[:SHOWN_REFERENCES]]
        lines += [*(f"  response  {one}" for one in responses), ""]
    return lines


def table(records: Annotated[list[Path], "Records of runs."]) -> None:
    """Print a row for each record, as `highrank compare --runs`.

    Example: highrank results table exp/*/results.json
    """
    compare(records, runs=True)


# the second and third are `compare --runs` and `published`, for scripts about records alone
results = make_group({"record": record}, {"table": table, "published": published})
