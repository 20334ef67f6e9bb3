"""Provide `highrank measure`: all registered measures, whose constructors give the options."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer

from highrank_plugins.cli.analyse import TextSettings
from highrank_plugins.cli.options import Data, UserDir, names, numbers, refuse_idle, with_provenance
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import plain, write_json
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.inference.collector import started
from highrank_plugins.inference.loading import load_model
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import AdaptiveEvaluation, Measure, TextMeasure, WeightMeasure
from highrank_plugins.reports.plots import check_plot, draw

Kinds = Mapping[str, type[Measure]]
_SHARED = ("measures", "checkpoints", "data", "other", "output", "plot", "user_dir")


class _Option(NamedTuple):
    """Describe an argument of a measure's constructor."""

    kind: Any
    text: str
    default: Any

    def shown(self) -> Any:
        """Return the type of the option, which is None if it is not given; lists are text."""
        is_text = get_origin(self.kind) is tuple or self.kind == int | Literal["all"]
        return str | None if is_text else self.kind | None

    def value(self, name: str, given: Any) -> Any:
        """Return what the constructor takes: lists of numbers, and numbers or `all`, from text."""
        if get_origin(self.kind) is tuple:
            return tuple(numbers(flag(name), str(given), get_args(self.kind)[0]))
        if isinstance(given, str) and given != "all" and self.kind == int | Literal["all"]:
            found = numbers(flag(name), given, int)
            if len(found) > 1:
                raise ValueError(f"{flag(name)} {given}: give one number, or all")
            return found[0]
        return given


def options_of(measure: type[Measure]) -> dict[str, _Option]:
    """Return the options of a measure: the arguments of its constructor."""
    hints = get_type_hints(measure.__init__, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(measure).parameters.items():
        if name not in hints:
            raise _unfit(measure, name, f'has no type; write {name}: Annotated[TYPE, "help"]')
        if name in (*_SHARED, *TextSettings.model_fields):
            reason = f"{flag(name)} is an option of `highrank measure` already; choose another name"
            raise _unfit(measure, name, reason)
        hint = hints[name]
        kind, text = get_args(hint) if get_origin(hint) is Annotated else (hint, "")
        found[name] = _Option(kind, text, parameter.default)
    return found


def _unfit(measure: type[Measure], argument: str, reason: str) -> ValueError:
    where = f"{inspect.getfile(measure)}: {measure.__name__}"
    return ValueError(f"{where}: argument {argument} of the constructor: {reason}")


def command(kinds: Kinds) -> Callable[..., None]:
    """Return the function of `highrank measure`, which has the options of all measures."""
    own: dict[str, dict[str, _Option]] = {}  # option → measure → what it is there
    for measure, kind in kinds.items():
        for name, found in options_of(kind).items():
            others = own.setdefault(name, {})
            if any(other.shown() != found.shown() for other in others.values()):
                reason = f"has another type in {next(iter(others))}; choose another name"
                raise _unfit(kind, name, reason)
            others[measure] = found

    def measure_them(**given: Any) -> None:
        run(kinds, own, **given)

    about = {name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in kinds.items()}
    lines = "\n".join(f"{name}: {sentence}" for name, sentence in about.items())
    measure_them.__doc__ = f"{inspect.getdoc(run)}\n\n\b\n{lines}"
    told = [*inspect.signature(run).parameters.values()][2:-1]
    for name, of in own.items():
        shown: Any = Annotated[next(iter(of.values())).shown(), _help(of)]
        told.append(told[-1].replace(name=name, default=None, annotation=shown))
    vars(measure_them)["__signature__"] = inspect.Signature(told)
    return measure_them


def _help(of: Mapping[str, _Option]) -> str:
    """Return what an option means to each measure; those of one meaning share it."""
    meanings: dict[str, list[str]] = {}
    for name, found in of.items():
        default = found.default
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        known = shown not in (None, "", inspect.Parameter.empty)
        text = f"{found.text} [default: {shown}]" if known else found.text
        meanings.setdefault(text, []).append(name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in meanings.items())


def run(
    kinds: Kinds,
    own: Mapping[str, Mapping[str, _Option]],
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
    chosen = names("MEASURES", measures)
    made = {name: _made(name, kinds, given) for name in chosen}
    texts = {name: one for name, one in made.items() if isinstance(one, TextMeasure)}
    for name, value in given.items():
        if value is not None and own[name].keys().isdisjoint(chosen):
            has = f"it is an option of {', '.join(own[name])}"
            raise ValueError(f"{flag(name)} {value}: changes nothing for {','.join(chosen)}; {has}")
    if not texts:
        refuse_idle(settings, (), f"for {','.join(chosen)}")
    _check_checkpoints(made, checkpoints, other)
    check_plot(plot)
    if plot is not None and len(made) > 1:
        raise ValueError(f"--plot {plot}: draws one measure; name one")
    with started() as processes:
        models = [checkpoints[0], *([] if other is None else [other])] if texts else []
        collectors = [settings.collector(path, data, processes) for path in models]
        found = _along_a_text(texts, *collectors)
        if processes.rank:
            return
    weights = {name: one for name, one in made.items() if isinstance(one, WeightMeasure)}
    _report(made, found | _of_weights(weights, checkpoints, data), output, plot)


def _made(name: str, kinds: Kinds, given: Mapping[str, Any]) -> Measure:
    """Return a measure with the given options that are its own."""
    if name not in kinds:
        near = did_you_mean(name, kinds) or f"; there are: {', '.join(kinds)}"
        raise ValueError(f"unknown measure {name!r}{near}")
    kind, found = kinds[name], {}
    for own, told in options_of(kind).items():
        if given.get(own) is not None:
            found[own] = told.value(own, given[own])
        elif told.default is inspect.Parameter.empty:
            raise ValueError(f"{name} needs {flag(own)}")
    return kind(**found)


def _check_checkpoints(
    made: Mapping[str, Measure], checkpoints: Sequence[Path], other: Path | None
) -> None:
    for name, measure in made.items():
        if other is None and getattr(measure, "needs_other", False):
            raise ValueError(f"{name} needs --other")
        if other is not None and not getattr(measure, "compares", False):
            raise ValueError(f"--other {other}: {name} takes one model; leave it out")
        if len(checkpoints) > 1 and not getattr(measure, "of_many", False):
            raise ValueError(f"{checkpoints[1]}: {name} takes one checkpoint")


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
    made: Mapping[str, Measure], found: Mapping[str, Any], output: Path | None, plot: Path | None
) -> None:
    """Print and write the results, and draw the first figure."""
    shown = {}
    for name, measure in made.items():
        seed = {"seed": measure.seed} if hasattr(measure, "seed") else {}
        values = seed | plain(found[name])
        shown[name] = {key: v for key, v in values.items() if key not in measure.hidden}
        if output is not None:
            path = output if len(made) == 1 else output / f"{name.replace('-', '_')}.json"
            write_json(path, with_provenance(values))
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
        reason = getattr(result, "reason", "") or "this layer has no such part"
        raise ValueError(f"--plot: nothing to draw: {reason}")
    draw(plot, figures[0])


def check_block(block: str, options: Mapping[str, Any]) -> str:
    """Return what is wrong with the options of a measure's block in a configuration, or ""."""
    kind, name = all_measures()[block], block.replace("_", "-")
    if issubclass(kind, AdaptiveEvaluation):
        return ""
    known = {*options_of(kind), "output", "plot", "user_dir"}
    known |= {*TextSettings.model_fields} if issubclass(kind, TextMeasure) else set()
    for one in options.keys() - known - {"other"}:
        return f"{kind.command(block)} has no {flag(one)}{did_you_mean(one, known)}"
    try:
        _check_checkpoints({name: _made(name, {name: kind}, options)}, [], options.get("other"))
    except ValueError as error:
        return str(error)
    return ""


measure = command(
    {
        name.replace("_", "-"): kind
        for name, kind in all_measures().items()
        if not issubclass(kind, AdaptiveEvaluation)
    }
)
