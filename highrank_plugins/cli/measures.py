"""Provide `highrank analyse NAME` for every registered measure; its constructor gives the flags."""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from highrank_plugins.cli.options import Data, UserDir, numbers, report
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.names import flag

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector, Processes
    from highrank_plugins.measures.base import Measure, TextMeasure, WeightMeasure

Checkpoint = Annotated[Path, "Language or translation model, fairseq's or ours."]
Checkpoints = Annotated[list[Path], "Checkpoints of one training run, in any order."]
_Option = tuple[str, Any, Any]  # name, annotation, default


class TextSettings(BlockOptions):
    """Say which text a model is observed along, and how."""

    split: str = option("test", "Split whose contexts are used.")
    tokens: int | None = option(None, "Use only the first N tokens.", ge=2)
    segment: int = option(500, "Number of tokens held in memory at a time.", ge=1)
    dtype: Literal["float32", "float64"] = option("float32", "Precision of the model.")
    device: str | None = option(None, "cpu, cuda or cuda:N (default: a GPU if there is one).")

    def collector(
        self, checkpoint: Path, data: str, processes: "Processes | None" = None
    ) -> "Collector":
        """Read a checkpoint, and return what observes it along the text."""
        from highrank_plugins.inference.collector import Collector

        return Collector.open(
            checkpoint, data, self.split, tokens=self.tokens, rows=self.segment, dtype=self.dtype,
            device=self.device, processes=processes,
        )  # fmt: skip


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

    is_text, many = issubclass(measure, TextMeasure), getattr(measure, "of_many", False)
    empty = inspect.Parameter.empty
    options = list(_options(measure))
    given: list[_Option] = [("checkpoint", Checkpoint, empty), ("data", Data, empty)]
    if many:
        given[0] = ("checkpoints", Checkpoints, empty)
    ends: list[_Option] = [
        ("output", Path | None, option(None, "JSON file to write the result to.")),
        ("plot", Path | None, option(None, "Draw into FILE.png, .svg or .pdf.")),
        ("user_dir", UserDir, None),
    ]
    if is_text:
        ends.insert(0, ("settings", TextSettings, empty))
    if getattr(measure, "compares", False):
        alone = ... if getattr(measure, "needs_other", False) else None
        other = option(alone, "Second checkpoint, with the same dictionary.")
        ends.insert(0, ("other", Path | None, other))
    taken = {name for name, *_ in (*given, *ends)}
    taken |= TextSettings.model_fields.keys() if is_text else set()
    for name, *_ in options:
        if name in taken:
            reason = f"{flag(name)} is an option of `{words}` already; choose another name"
            raise _unfit(measure, name, reason)

    def run(**given: Any) -> None:
        own = {name: given.pop(name) for name, *_ in options}
        measure_it: Any = _along_a_text if is_text else _of_many if many else _of_weights
        _report(measure_it, measure, own, **given)

    example = [words, "exp/train/checkpoint*.pt" if many else "checkpoint_best.pt", "data-bin"]
    for name, _, default in options:
        example += [flag(name), f"{name}.txt"] if default is empty else []
    example += ["--other", "other.pt"] if getattr(measure, "needs_other", False) else []
    what, _, more = (inspect.getdoc(measure) or "").partition("\n\n")
    run.__doc__ = f"{what}\n\nExample: {' '.join(example)}\n\n{more}"
    told = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, kind, default in (*given, *options, *ends)
    ]
    vars(run)["__signature__"] = inspect.Signature(told)
    return run


def _unfit(measure: "type[Measure]", argument: str, reason: str) -> ValueError:
    where = f"{inspect.getfile(measure)}: {measure.__name__}"
    return ValueError(f"{where}: argument {argument} of the constructor: {reason}")


def _options(measure: "type[Measure]") -> Iterator[_Option]:
    """Yield the options of a command line for the arguments of a measure's constructor."""
    hints = get_type_hints(measure.__init__, include_extras=True)
    for name, parameter in inspect.signature(measure).parameters.items():
        if name not in hints:
            raise _unfit(measure, name, f'has no type; write {name}: Annotated[TYPE, "help"]')
        hint = hints[name]
        kind, text = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        default = parameter.default
        if _is_list(kind):
            default = ",".join(map(str, default)) or None
            kind = str if default else str | None
        elif get_origin(kind) is not list and Literal["all"] in get_args(kind):
            kind, default = str, str(default)
        yield name, Annotated[kind, typer.Option(help=text)], default


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _from_text(measure: "type[Measure]", given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the constructor: lists of numbers, and numbers or `all`."""
    hints = get_type_hints(measure.__init__)
    found = dict(given)
    for name, value in given.items():
        if _is_list(hints[name]):
            kind = get_args(hints[name])[0]
            found[name] = () if value is None else tuple(numbers(flag(name), str(value), kind))
        elif isinstance(value, str) and value != "all" and Literal["all"] in get_args(hints[name]):
            found[name], *more = numbers(flag(name), value, int)
            if more:
                raise ValueError(f"{flag(name)} {value}: give one number, or all")
    return found


def check_values(measure: "type[Measure]", options: dict[str, Any]) -> None:
    """Build a measure with the options of its block that are arguments of the constructor."""
    names = inspect.signature(measure).parameters
    given = {name: value for name, value in options.items() if name in names}
    if given.keys() >= {n for n, p in names.items() if p.default is inspect.Parameter.empty}:
        measure(**_from_text(measure, given))


def _report(
    measure_it: Callable[..., Any],
    kind: "type[Measure]",
    own: dict[str, Any],
    output: Path | None,
    plot: Path | None,
    user_dir: Path | None,
    **given: Any,
) -> None:
    """Measure, print and write the result, and draw its first figure."""
    from highrank_plugins.reports.plots import check_plot, draw

    check_plot(plot)
    measure: Any = kind(**_from_text(kind, own))
    result = measure_it(measure, **given)
    if result is None:  # in processes other than the first
        return
    more = {name: own[name] for name in own if name == "seed" and measure_it is _along_a_text}
    report(result, output, hidden=kind.hidden, **more)
    if plot is None:
        return
    many = measure_it is _of_many
    figures = measure.figures_of_many(result["checkpoints"]) if many else measure.figures(result)
    if not figures:
        reason = getattr(result, "reason", "") or "this layer has no such part"
        raise ValueError(f"--plot: nothing to draw: {reason}")
    draw(plot, figures[0])


def _along_a_text(
    measure: "TextMeasure",
    checkpoint: Path,
    data: str,
    settings: TextSettings,
    other: Path | None = None,
) -> Any:
    """Measure along a text, and return the result in the first process."""
    from highrank_plugins.inference.collector import started

    with started() as processes:
        first = settings.collector(checkpoint, data, processes)
        if other is None:
            results = first.measure([measure])
            return None if results is None else results[0]
        second, its = settings.collector(other, data, processes), copy(measure)
        parts, its_parts = first.observe([measure]), second.observe([its])
        if parts is None or its_parts is None:
            return None
        return measure.compare(parts[0], its, its_parts[0])


def _of_weights(measure: "WeightMeasure", checkpoint: Path, data: str) -> Any:
    """Measure the output layer of one checkpoint."""
    from highrank_plugins.inference.loading import load_model

    result = measure.measure(load_model(checkpoint, data).words)
    for reason in getattr(result, "unknown", {}).items():
        typer.echo(f"highrank: {': '.join(reason)}", err=True)
    return result


def _of_many(measure: "WeightMeasure", checkpoints: list[Path], data: str) -> dict[str, Any]:
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
    return {"checkpoints": sorted(found, key=lambda one: one["updates"] or 0)}
