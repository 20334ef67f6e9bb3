"""Provide `highrank measure`: all registered measures, whose constructors give the options."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from highrank_plugins.cli.analyse import TextSettings
from highrank_plugins.cli.options import (
    Data,
    UserDir,
    names,
    numbers,
    refuse_idle,
    require_file,
    with_provenance,
)
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import plain, write_json
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.inference.collector import Collector, started
from highrank_plugins.inference.loading import load_model
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import AdaptiveEvaluation, Measure, TextMeasure, WeightMeasure
from highrank_plugins.reports.plots import check_plot, draw

Kinds = Mapping[str, type[Measure]]


def options_of(measure: type[Measure]) -> Mapping[str, inspect.Parameter]:
    """Return the options of a measure: its constructor's arguments, `Annotated[type, "help"]`."""
    return inspect.signature(measure, eval_str=True).parameters


def _kind(option: inspect.Parameter) -> tuple[Any, bool]:
    """Return the type of an option, and whether a command line has it as text."""
    kind = get_args(option.annotation)[0]
    return kind, get_origin(kind) is tuple or kind == int | Literal["all"]


def _value(option: inspect.Parameter, given: Any) -> Any:
    """Return what the constructor takes: lists of numbers, and numbers or `all`, from text."""
    kind, is_text = _kind(option)
    is_list, name = get_origin(kind) is tuple, flag(option.name)
    if not is_text or (given == "all" and not is_list):
        return given
    found = numbers(name, str(given), get_args(kind)[0])
    if len(found) > 1 and not is_list:
        raise ValueError(f"{name} {given}: give one number, or all")
    return tuple(found) if is_list else found[0]


def command(kinds: Kinds) -> Callable[..., None]:
    """Return the function of `highrank measure`, which has the options of all measures."""

    def measure_them(**given: Any) -> None:
        run(kinds, **given)

    about = {name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in kinds.items()}
    lines = "\n".join(f"{name}: {sentence}" for name, sentence in about.items())
    measure_them.__doc__ = f"{inspect.getdoc(run)}\n\n\b\n{lines}"
    told = [*inspect.signature(run).parameters.values()][1:-1]
    for name, of in _by_option(kinds).items():
        kind, is_text = _kind(next(iter(of.values())))
        shown: Any = Annotated[str | None if is_text else kind | None, _help(of)]
        told.append(told[-1].replace(name=name, default=None, annotation=shown))
    vars(measure_them)["__signature__"] = inspect.Signature(told)
    return measure_them


def _by_option(kinds: Kinds) -> dict[str, dict[str, inspect.Parameter]]:
    """Return the options by name, each with the measures that have it."""
    found: dict[str, dict[str, inspect.Parameter]] = {}
    for measure, kind in kinds.items():
        for name, parameter in options_of(kind).items():
            found.setdefault(name, {})[measure] = parameter
    return found


def _help(of: Mapping[str, inspect.Parameter]) -> str:
    """Return what an option means to each measure."""
    said = []
    for name, parameter in of.items():
        default, text = parameter.default, get_args(parameter.annotation)[1]
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        known = shown not in (None, "", inspect.Parameter.empty)
        said.append(f"{name}: {text}{f' [default: {shown}]' if known else ''}")
    return " ".join(said)


def run(
    kinds: Kinds,
    measures: Annotated[str, "Names of measures, separated by commas."],
    checkpoints: Annotated[list[Path], "Language or translation model, fairseq's or ours."],
    data: Data,
    *,
    settings: TextSettings,
    other: Path | None = option(None, "Second checkpoint, with the same dictionary."),
    output: Path | None = option(None, "JSON file; of several measures, their folder."),
    plot: Path | None = option(None, "Draw into FILE.png, .svg or .pdf."),
    user_dir: UserDir = None,
    **given: Any,
) -> None:
    """Measure what a checkpoint's output layer does.

    Example: highrank measure kld,predictions checkpoint_best.pt data-bin
    --pairs all --output results

    All chosen measures of a text share one pass along it. saturation takes the checkpoints of one
    training run, the others take one. More in docs/howto/measure.md.
    """
    made = _made(names("MEASURES", measures), kinds, settings, other, given)
    texts = {name: one for name, one in made.items() if isinstance(one, TextMeasure)}
    for name, measure in made.items():
        if len(checkpoints) > 1 and not measure.of_many:
            raise ValueError(f"{checkpoints[1]}: {name} takes one checkpoint")
    check_plot(plot)
    require_file(output if len(made) == 1 else None)
    if plot is not None and len(made) > 1:
        raise ValueError(f"--plot {plot}: draws one measure; name one")
    if len(made) > 1 and output is not None and output.is_file():
        raise ValueError(f"--output {output} is a file: name a folder for several measures")
    with started() as processes:
        models = [checkpoints[0], *([] if other is None else [other])] if texts else []
        text = {**dict(settings), "processes": processes}
        found = _along_a_text(texts, *(Collector.open(path, data, **text) for path in models))
        if processes.rank:
            return
    weights = {name: one for name, one in made.items() if isinstance(one, WeightMeasure)}
    found |= _of_weights(weights, checkpoints, data)
    _report(made, found, settings.split, output, plot)


def _made(
    chosen: Sequence[str], kinds: Kinds, settings: TextSettings, other: object,
    given: Mapping[str, Any],
) -> dict[str, Measure]:  # fmt: skip
    """Return measures with the options that are their own; refuse what changes nothing."""
    made = {}
    for name in chosen:
        if name not in kinds:
            near = did_you_mean(name, kinds) or f"; there are: {', '.join(kinds)}"
            raise ValueError(f"unknown measure {name!r}{near}")
        kind, found = kinds[name], {}
        for own, parameter in options_of(kind).items():
            if given.get(own) is not None:
                found[own] = _value(parameter, given[own])
            elif parameter.default is inspect.Parameter.empty:
                raise ValueError(f"{name} needs {flag(own)}")
        made[name] = kind(**found)
        if other is None and kind.needs_other:
            raise ValueError(f"{name} needs --other")
        if other is not None and not kind.compares:
            raise ValueError(f"--other {other}: {name} takes one model; leave it out")
    for own, of in _by_option(kinds).items():
        if given.get(own) is not None and of.keys().isdisjoint(chosen):
            why = f"changes nothing for {','.join(chosen)}; it is an option of {', '.join(of)}"
            raise ValueError(f"{flag(own)} {given[own]}: {why}")
    if not any(isinstance(measure, TextMeasure) for measure in made.values()):
        refuse_idle(settings, (), f"for {','.join(chosen)}")
    return made


def _along_a_text(
    measures: Mapping[str, TextMeasure], first: Any = None, second: Any = None
) -> dict[str, Any]:
    """Return results along a text, for one model or for two; none in processes but the first."""
    own, results = list(measures.values()), None
    if second is not None:
        its = list(map(copy, own))
        parts, its_parts = first.observe(own), second.observe(its)
        if parts is not None:
            both = zip(own, parts, its, its_parts, strict=True)
            results = [one.compare(of, its_one, its_of) for one, of, its_one, its_of in both]
    elif first is not None:
        results = first.measure(own)
    return dict(zip(measures, results or (), strict=False))


def _of_weights(
    measures: Mapping[str, WeightMeasure], checkpoints: Sequence[Path], data: str
) -> dict[str, Any]:
    """Measure the output layers of checkpoints, with one in memory at a time."""
    found, along = dict[str, Any](), dict[str, list[dict[str, Any]]]()
    for path in checkpoints if measures else ():
        loaded = load_model(path, data)
        for name, measure in measures.items():
            try:
                result = measure.measure(loaded.words)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            for reason in getattr(result, "unknown", {}).items():
                typer.echo(f"highrank: {': '.join(reason)}", err=True)
            found[name] = result
            if measure.of_many:
                of = {key: v for key, v in plain(result).items() if key not in measure.hidden}
                one = {"checkpoint": str(path), "updates": loaded.updates, **of}
                along.setdefault(name, []).append(one)
    by_updates = {n: sorted(of, key=lambda one: one["updates"] or 0) for n, of in along.items()}
    return found | {name: {"checkpoints": of} for name, of in by_updates.items()}


def _report(
    made: Mapping[str, Measure], found: Mapping[str, Any], split: str, output: Path | None,
    plot: Path | None,
) -> None:  # fmt: skip
    """Print and write the results, and draw the first figure."""
    shown = {}
    for name, measure in made.items():
        values = plain(found[name])
        shown[name] = {key: v for key, v in values.items() if key not in measure.hidden}
        if output is not None:
            path = output if len(made) == 1 else output / f"{name.replace('-', '_')}.json"
            read = {"split": split} if measure.of_a_split else {}
            write_json(path, with_provenance(values | read))
    (name, measure), *others = made.items()
    typer.echo(json.dumps(shown if others else shown[name], indent=2, ensure_ascii=False))
    if plot is None:
        return
    result = found[name]
    if isinstance(measure, WeightMeasure) and measure.of_many:
        figures = measure.figures_of_many(result["checkpoints"])
    else:
        figures = measure.figures(result)
    if not figures:
        reason = (
            getattr(result, "reason", "")
            or "this layer has no such part, or the text is a single batch"
        )
        raise ValueError(f"--plot: nothing to draw: {reason}")
    draw(plot, figures[0])


_KINDS = {
    name.replace("_", "-"): kind
    for name, kind in all_measures().items()
    if not issubclass(kind, AdaptiveEvaluation)
}


def check_block(block: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a measure's block in a configuration has too much or too little, or wrong."""
    if (name := block.replace("_", "-")) in _KINDS:
        try:
            settings = TextSettings.model_construct(**options)
            _made([name], _KINDS, settings, options.get("other"), options)
        except ValueError as error:
            yield str(error)


measure = command(_KINDS)
