"""Write and compare records of runs: `highrank record`, `compare`, `published`, `race`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from highrank_plugins.analysis.statistics import PlannedTest, Summary, summarise
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import (
    Data,
    UserDir,
    names,
    numbers,
    print_or_write,
    print_tables,
    refuse_idle,
)
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.files import write_json
from highrank_plugins.common.names import flag
from highrank_plugins.reports import comparisons, plots
from highrank_plugins.reports.tables import brief, to_markdown
from highrank_plugins.results import comparison, doubts, perplexity, summary
from highrank_plugins.results.ledger import read_ledger
from highrank_plugins.results.record import (
    RESULTS,
    bounded,
    load_record,
    make_record,
    read_training,
)
from highrank_plugins.results.results_table import numbers_by_system
from highrank_plugins.studies.definition import RaceSettings
from highrank_plugins.studies.table import held_by_studies
from highrank_plugins.training.configuration import load

Format = Literal["terminal", "markdown", "latex", "csv"]


class CompareOptions(BlockOptions):
    """Say what is compared with what, and how it is shown."""

    metric: str | None = option(None, "Metric to test (default: sacrebleu or test_perplexity).")
    baseline: str | None = option(None, "System to test against (default: softmax).")
    test: Literal["student", "welch"] = option("student", "t-test of equal or of any variances.")
    alpha: float = option(0.05, "Level of bold numbers, after Holm's adjustment.", ge=1e-9, le=0.5)
    columns: str | None = option(None, "Further metrics, separated by commas (default: all known).")
    paper: str | None = option(None, "Paper to test our scores against, e.g. yang2019.")
    task: str | None = option(None, "Recipe whose published scores these are, e.g. ptb.")
    runs: bool = option(False, "Print a row for each record, and test nothing.")
    all_tests: bool = option(False, "Also print effects and p-values, as CSV always does.")
    format: Format | None = option(None, "Format (default: terminal on a terminal, else markdown).")
    plot: Path | None = option(None, "Also draw the metric over --x (.png, .svg, .pdf).")
    x: str | None = option(
        None,
        "Horizontal axis of --plot: parameters (default), words_per_second (default without "
        "them), a metric, or an option of train. With --y: the first metric (default: test_rank).",
    )
    y: str | None = option(None, "Correlate this metric with --x over models, and test nothing.")
    within: str | None = option(None, "Use only models whose --y lies in LOW,HIGH: 56.6,57.6.")
    output: Path | None = option(None, "File for the table (default, and -: print it).")


_Records = Annotated[
    list[Path],
    "SYSTEM-SEED.json, SYSTEM-SEED/results.json or SYSTEM/results.json; or numbers, the baseline "
    "first: SYSTEM=57.1,57.2 or SYSTEM=MEAN:SD:RUNS.",
]


def compare(records: _Records, options: CompareOptions) -> None:
    """Compare systems over seeds: means, tests, effects, costs.

    Example: highrank compare exp/ptb/*/results.json --baseline softmax

    Systems are sorted, with the places that each may have, and a line between groups that differ.
    Notes below the table name what else differs between the runs: training length, batches,
    scoring, text, code, machine. With --runs two records of one configuration and seed need
    different revisions of the code. With --y the seeds of a system are one point, since they are
    not independent of each other.
    """
    plots.check_plot(options.plot)
    given = [str(path) for path in records if "=" in str(path) and not path.exists()]
    kind = "--runs" if options.runs else "--y" if options.y else "numbers" if given else ""
    _refuse_idle(kind, options)
    if given and len(given) < len(records):
        raise ValueError(f"{given[0]}: give records or numbers, not both")
    if options.runs:
        tables = [comparisons.runs_table(records)]
    elif options.y:
        of = options.x or "test_rank", options.y
        systems = numbers_by_system(records, *of)
        tables = [comparisons.correlation_table(systems, *of, _range(options.within))]
        if options.plot is not None:
            plots.draw(options.plot, plots.scatter(systems, *of))
    elif given:
        tables = comparisons.comparison_tables(_values(given, options))
    else:
        compared = _compared(records, options)
        if options.plot is not None:
            plots.draw(options.plot, *plots.study_figures(compared, options.x))
        judged = None if options.paper is None else (options.paper, options.task)
        tables = comparisons.comparison_tables(compared, paper=judged)
    whole = options.all_tests or options.format == "csv"
    print_tables(tables if whole else brief(tables), options.output, options.format)


MOST_RUNS = 10**9  # of a system whose mean is given
_TABLE = {"format", "output"}
# kind of comparison → the options that change it
_USED = {
    "--runs": {"runs", *_TABLE},
    "--y": {"plot", "x", "y", "within", *_TABLE},
    "numbers": {"metric", "test", "alpha", "all_tests", *_TABLE},
}
_NEEDS = {"task": "paper", "within": "y", "x": "plot"}


def _refuse_idle(kind: str, options: CompareOptions) -> None:
    """Refuse options that would change nothing in this kind of comparison."""
    if kind:
        refuse_idle(options, _USED[kind], f"with {kind}")
    for name, needed in _NEEDS.items() if kind != "--y" else ():
        value = getattr(options, name)
        if value is not None and getattr(options, needed) is None:
            need = flag(needed)
            raise ValueError(f"{flag(name)} {value}: changes nothing without {need}; add {need}")


def _compared(records: list[Path], options: CompareOptions) -> comparison.Compared:
    """Compare records, and name the other runs of their studies that have none."""
    given = options.columns
    columns = names("--columns", given) if given else None if given is None else []
    untested, missing = held_by_studies(records)
    compared = comparison.compare_records(
        records, options.metric, options.baseline, PlannedTest(options.test), options.alpha,
        columns, untested,
    )  # fmt: skip
    return replace(compared, notes=[*compared.notes, *missing])


def _values(texts: list[str], options: CompareOptions) -> comparison.Compared:
    """Compare systems, given as NAME=57.1,57.2,… or NAME=MEAN:SD:RUNS, with the first."""
    if len(texts) < 2:
        raise ValueError(f"{', '.join(texts)}: give numbers of a baseline, then of other systems")
    metric = options.metric or "value"
    systems = [_given(text, metric) for text in texts]
    if len({system.name for system in systems}) < len(systems):
        raise ValueError("two systems have one name; give each its own")
    test = PlannedTest(options.test)
    compared = comparison.Compared(systems, [metric], systems[0].name, test, options.alpha)
    return comparison.with_tests(compared)


def _given(text: str, metric: str) -> comparison.ComparedSystem:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ValueError(f"{text}: expected NAME=NUMBER,NUMBER,… or NAME=MEAN:SD:RUNS")
    try:
        if ":" in values:
            middle, sd, runs = values.split(":")
            numbers, found = [float(middle)], Summary(float(middle), float(sd), int(runs))
        else:
            numbers = [float(word) for word in values.split(",")]
            found = summarise(numbers)
        if found.n > MOST_RUNS:
            raise ValueError(f"{found.n} runs are above {MOST_RUNS}")
        for number in summarise(found):
            bounded(number)
    except ValueError as error:
        raise ValueError(
            f"{text}: expected numbers separated by commas, or MEAN:SD:RUNS with an SD of 0 or "
            f"more and two runs or more ({error})"
        ) from None
    for wrong in filter(None, (doubts.impossible(metric, value) for value in numbers)):
        raise ValueError(f"{name}: {wrong}")
    return comparison.ComparedSystem(name, given=found)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    found = numbers("--within", text, float)
    if len(found) != 2 or not found[0] < found[1]:
        raise ValueError(f"--within {text}: expected LOW,HIGH with LOW below HIGH")
    return found[0], found[1]


def race(
    trunk: Annotated[Path, "Checkpoint of fairseq or ours, or a folder of transformers."],
    data: Data,
    settings: RaceSettings,
    user_dir: UserDir = None,
) -> None:
    """Train output layers alone on the features of one trained trunk, and compare them.

    Example: highrank race checkpoint_best.pt data-bin --layers softmax,sigsoftmax,mos

    Features are written once. The same command resumes an interrupted race. More in
    docs/howto/race.md.
    """
    from highrank_plugins.studies.race import race as run

    layers, rates = names("--layers", settings.layers), numbers("--rates", settings.rates, float)
    print_tables(brief(run(trunk, data, settings, layers, rates, user_dir)))


def published(
    task: Annotated[str, "Name of a recipe, e.g. wmt14_en_de."],
    results: list[Path] | None = option(None, "Record of `highrank record`; may be repeated."),
) -> None:
    """Print the papers' scores and ours.

    Example: highrank published ptb

    The table has a column for each kind of score: Markdown in a file, drawn on a terminal.
    docs/papers.md has every published number, with errata and tolerances.
    """
    ours = {_named(path): _numbers(load_record(path)) for path in results or []}
    print_tables([comparisons.published_table(task, ours)])


def _named(path: Path) -> str:
    """Return the folder of a recipe's record, or the file of another one."""
    return str(path.parent if path.name == RESULTS else path)


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a record, and its parameters where it has them."""
    parameters = record["train"].get("parameters")
    return record["metrics"] | ({} if parameters is None else {"parameters": parameters})


class RecordOptions(BlockOptions):
    """Name what a record is made from."""

    scores: Path = option(..., "Scores of `highrank evaluate score`, or the folder of evaluations.")
    config: Path = option(..., "Configuration of `highrank train configure`.")
    training: Path = option(..., "The run's --save-dir, with command.sh and metrics.jsonl.")
    output: Path = option(..., "JSON file to write.")
    finetuning: Path | None = option(None, "The --save-dir of the finetuning run, if any.")
    paired: Path | None = option(None, "The paired.json of `highrank evaluate score`.")
    summary: Path | None = option(None, "File for the summary (default: print it).")
    samples: list[Path] | None = option(None, "Texts for samples: source, references, the model's.")
    data: Path | None = option(None, "Folder of the binarised data.")
    published: str | None = option(None, "Recipe whose published scores come first.")
    generated: list[Path] | None = option(None, "Outputs of fairseq-generate, such as test.txt.")


def record(options: RecordOptions) -> None:
    """Write the record of a run, and a summary for people.

    Example: highrank record --scores scores.json --config config.yaml
    --training train --output results.json

    The record holds metrics, signature, configuration, versions, revision, hardware and speed. With
    --data it also holds the ledger: the sentences and tokens that each stage took and left out, and
    why. A result that does not cover the whole text is refused. --generated adds the stage that
    generates. The last line of the summary is the score.

    The folder of a language model's evaluations has test.log and valid.log of fairseq-eval-lm, and
    the results of its measures. It may have train.log. With --finetuning it also has
    before_finetuning_test.log and before_finetuning_valid.log, of the first run's checkpoint.
    """
    result = _record_of(options)
    text = f"{summary.summary(result, options.samples or [])}\n"
    write_json(options.output, result)
    if options.published is not None:
        ours = {_named(options.output): _numbers(result)}
        text = f"{to_markdown([comparisons.published_table(options.published, ours)])}\n{text}"
    print_or_write(text, options.summary)


def _record_of(options: RecordOptions) -> dict[str, Any]:
    data, scores = options.data, options.scores
    folders = list(filter(None, (options.training, options.finetuning)))
    settings = load(options.config)
    found = summary.read_scores(scores, options.finetuning is not None, data)
    key, counts, words = None, {}, None
    if data is not None:
        data.stat()  # its error says what is missing
        if (inputs := data / ".key").is_file():  # by a recipe's stage
            key = inputs.read_text(encoding="utf-8").strip()
        words = perplexity.dictionary(data) if scores.is_dir() else None
        generated, target = options.generated or [], settings.train.get("target_lang")
        if generated and target is None:
            raise ValueError("--generated needs a configuration with train.target_lang")
        folder = scores if scores.is_dir() else scores.parent
        counts = read_ledger(data, folders, target, generated, folder, found)
    return make_record(
        found,
        settings.blocks(),
        *map(read_training, folders),
        data=key,
        vocabulary=words,
        ledger=counts,
        paired=None if options.paired is None else summary.read_paired(options.paired),
    )


def table(records: Annotated[list[Path], "Records of runs."]) -> None:
    """Print a row for each record, as `highrank compare --runs`.

    Example: highrank results table exp/*/results.json
    """
    compare(records, CompareOptions(runs=True))


results = make_group({}, {"table": table, "published": published})  # records alone, for scripts
