"""Provide `highrank analyse NAME` for every registered measure; its constructor gives the flags."""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from highrank_plugins.cli.analyse.running import (
    Checkpoint,
    Dtype,
    Output,
    Plot,
    Precision,
    Segment,
    Split,
    Tokens,
    along_a_text,
    measuring,
    report,
)
from highrank_plugins.cli.options import Data, Device, UserDir, numbers
from highrank_plugins.common.names import flag

if TYPE_CHECKING:
    from highrank_plugins.common.formatting import Figure
    from highrank_plugins.inference.processes import Processes
    from highrank_plugins.measures.base import Measure, TextMeasure, WeightMeasure

Checkpoints = Annotated[
    list[Path], typer.Argument(help="Checkpoints of one training run, in any order.")
]
Other = Annotated[Path | None, "Second checkpoint, with the same dictionary."]


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the name and the function of each measure that `highrank analyse` runs."""
    from highrank_plugins.measures import all_measures
    from highrank_plugins.measures.base import AdaptiveEvaluation

    for name, measure in all_measures().items():
        if not issubclass(measure, AdaptiveEvaluation):
            yield name.replace("_", "-"), command(measure, measure.command(name))


def command(measure: "type[Measure]", words: str) -> Callable[..., None]:
    """Return a function whose signature typer turns into the command `words` for a measure."""
    from highrank_plugins.measures.base import TextMeasure

    options = list(_options(measure))
    many = bool(getattr(measure, "of_many", False))
    if issubclass(measure, TextMeasure):
        shared = [_parameter("other", Other, None)] if measure.compares else []
        shared += [
            _parameter("split", Split, "test"), _parameter("tokens", Tokens, None),
            _parameter("segment", Segment, 500), _parameter("dtype", Dtype, Precision.float32),
            _parameter("device", Device, None),
        ]  # fmt: skip
        subjects = [_parameter("checkpoint", Checkpoint)]
    else:
        shared = []
        name, kind = ("checkpoints", Checkpoints) if many else ("checkpoint", Checkpoint)
        subjects = [_parameter(name, kind)]

    def run(user_dir: Path | None, **given: Any) -> None:
        own = {option.name: given.pop(option.name) for option in options}
        _run(measure, own, **given)

    example = [words, "exp/train/checkpoint*.pt" if many else "checkpoint_best.pt", "data-bin"]
    for option in options:
        if option.default is inspect.Parameter.empty:
            example += [flag(option.name), f"{option.name}.txt"]
    what, _, more = (inspect.getdoc(measure) or "").partition("\n\n")
    run.__doc__ = f"{what}\n\nExample: {' '.join(example)}\n\n{more}"
    ends = [
        _parameter("output", Output, None), _parameter("plot", Plot, None),
        _parameter("user_dir", UserDir, None),
    ]  # fmt: skip
    data = _parameter("data", Data)
    given = [*subjects, data, *shared, *ends]
    for option in options:
        if option.name in [parameter.name for parameter in given]:
            taken = f"{flag(option.name)} is an option of `{words}` already; choose another name"
            raise _unfit(measure, option.name, taken)
    vars(run)["__signature__"] = inspect.Signature([*subjects, data, *options, *shared, *ends])
    return run


def _unfit(measure: "type[Measure]", argument: str, reason: str) -> ValueError:
    where = f"{inspect.getfile(measure)}: {measure.__name__}"
    return ValueError(f"{where}: argument {argument} of the constructor: {reason}")


def _options(measure: "type[Measure]") -> Iterator[inspect.Parameter]:
    hints = get_type_hints(measure.__init__, include_extras=True)
    for option in list(inspect.signature(measure).parameters.values()):
        if option.name not in hints:
            advice = f'has no type; write {option.name}: Annotated[TYPE, "help"]'
            raise _unfit(measure, option.name, advice)
        hint = hints[option.name]
        kind, text = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        default = option.default
        if _is_list(kind) or (get_origin(kind) is not list and Literal["all"] in get_args(kind)):
            kind, default = (str, _as_text(default))
            kind = kind | None if default is None else kind
        yield _parameter(option.name, Annotated[kind, typer.Option(help=text)], default)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _as_text(default: Any) -> str | None:
    """Return a default as text of the command line; None for an empty list."""
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or None
    return str(default)


def _from_text(measure: "type[Measure]", given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the constructor: lists of numbers, and numbers or `all`."""
    hints = get_type_hints(measure.__init__)
    found = dict(given)
    for name, value in given.items():
        if _is_list(hints[name]):
            kind = get_args(hints[name])[0]
            found[name] = () if value is None else tuple(numbers(flag(name), str(value), kind))
        elif isinstance(value, str) and Literal["all"] in get_args(hints[name]):
            found[name] = value if value == "all" else _one(flag(name), value)
    return found


def _one(option: str, text: str) -> int:
    found = numbers(option, text, int)
    if len(found) > 1:
        raise ValueError(f"{option} {text}: give one number, or all")
    return found[0]


def check_values(measure: "type[Measure]", options: dict[str, Any]) -> None:
    """Build a measure with the options of its block that are arguments of the constructor."""
    names = inspect.signature(measure).parameters
    given = {name: value for name, value in options.items() if name in names}
    if given.keys() >= {n for n, p in names.items() if p.default is inspect.Parameter.empty}:
        measure(**_from_text(measure, given))


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=kind)


def _run(
    kind: "type[Measure]",
    options: dict[str, Any],
    output: Path | None,
    plot: Path | None,
    data: str,
    **given: Any,
) -> None:
    from highrank_plugins.measures.base import TextMeasure, WeightMeasure

    if issubclass(kind, TextMeasure):
        with along_a_text(plot) as processes:
            text_measure = kind(**_from_text(kind, options))
            result = _along_a_text(text_measure, data, processes, **given)
            if result is not None:
                more = {name: value for name, value in options.items() if name == "seed"}
                report(result, output, hidden=kind.hidden, **more)
                _draw(text_measure.figures(result), plot, getattr(result, "absent", {}))
        return
    assert issubclass(kind, WeightMeasure)
    with measuring(plot):
        measure = kind(**_from_text(kind, options))
        if kind.of_many:
            _of_many(measure, given["checkpoints"], data, output, plot)
            return
        from highrank_plugins.inference.loading import load_model

        result = measure.measure(load_model(given["checkpoint"], data).words)
        for reason in getattr(result, "unknown", {}).items():
            typer.echo(f"highrank: {': '.join(reason)}", err=True)
        report(result, output, hidden=kind.hidden)
        _draw(measure.figures(result), plot, {"": getattr(result, "reason", "")})


def _along_a_text(
    measure: "TextMeasure",
    data: str,
    processes: "Processes",
    *,
    checkpoint: Path,
    split: str,
    tokens: int | None,
    segment: int,
    dtype: Precision,
    device: str | None,
    other: Path | None = None,
) -> Any:
    """Return the result; None in processes other than the first."""
    from highrank_plugins.inference.collector import Collector

    def collector(path: Path) -> Collector:
        return Collector.open(
            path, data, split, tokens=tokens, rows=segment, dtype=dtype.value, device=device,
            processes=processes,
        )  # fmt: skip

    if other is None:
        results = collector(checkpoint).measure([measure])
        return None if results is None else results[0]
    first, second = collector(checkpoint), collector(other)
    its = copy(measure)
    parts, its_parts = first.observe([measure]), second.observe([its])
    if parts is None or its_parts is None:
        return None
    return measure.compare(parts[0], its, its_parts[0])


def _of_many(
    measure: "WeightMeasure",
    checkpoints: list[Path],
    data: str,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Measure the checkpoints of one training run, with one in memory at a time."""
    from highrank_plugins.common.files import plain
    from highrank_plugins.inference.loading import load_model

    found = []
    for path in checkpoints:
        loaded = load_model(path, data)
        try:
            result = measure.measure(loaded.words)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        values = {name: v for name, v in plain(result).items() if name not in measure.hidden}
        found.append({"checkpoint": str(path), "updates": loaded.updates, **values})
    found.sort(key=lambda one: one["updates"] or 0)
    report({"checkpoints": found}, output)
    _draw(measure.figures_of_many(found), plot)


def _draw(figures: "list[Figure]", plot: Path | None, absent: dict[str, str] | None = None) -> None:
    """Draw the first figure.

    Args:
        absent: what this layer lacks, with the reason.
    """
    from highrank_plugins.reports.plots import draw

    if plot is None:
        return
    if not figures:
        reason = next(iter((absent or {}).values()), "") or "this layer has no such part"
        raise ValueError(f"--plot: nothing to draw: {reason}")
    draw(plot, figures[0])
