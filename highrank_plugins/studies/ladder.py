"""Judge a difference over sizes: LADDER.yaml is a study at each size, or points of others."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from highrank_plugins.common.blocks import (
    BlockOptions,
    ConfigurationError,
    Tree,
    read_tree,
    validated,
)
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.doubts import flat_settings
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import load_record
from highrank_plugins.studies.definition import (
    MOST_MEMBERS,
    Changes,
    Multiples,
    Seed,
    Study,
    Values,
    study_of,
)
from highrank_plugins.studies.members import PreparedMember, plain_numbers, scaled_rate

DECADE = 10
# options that decide how many tokens a run reads
_TOKENS = "max_update max_epoch max_tokens batch_size bptt tokens_per_sample update_freq".split()


def _three(found: dict[str, Any]) -> dict[str, Any]:
    if len(found) < 3:
        raise ValueError(f"{len(found)} sizes, and any two fit a line; give three, or better four")
    return found


def _number(value: Any) -> Any:
    """Return a number that YAML reads as text, such as 1e9."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _two(seeds: Any) -> Any:
    if (len(seeds) if isinstance(seeds, list) else seeds if isinstance(seeds, int) else 0) < 2:
        raise ValueError(f"expected two seeds or more, their number or a list, got {seeds!r}")
    if isinstance(seeds, int) and seeds > MOST_MEMBERS:
        raise ValueError(f"{seeds:,} seeds, and a study has {MOST_MEMBERS:,} members at most")
    return seeds


def _near(factor: float) -> float:
    if not 1 < factor <= DECADE:
        said = f"choose above 1 and up to {DECADE}, a decade"
        raise ValueError(f"{factor:g} times the largest size: {said}")
    return factor


class _JudgedSettings(BlockOptions):
    """Hold what a file of runs and one of points say; `target` is in computes of the largest."""

    baseline: str
    metric: str
    target: Annotated[float, AfterValidator(_near)] = DECADE

    @property
    def in_nats(self) -> bool:
        """Whether scores are compared by their logarithms."""
        return "perplexity" in self.metric


class ArmSettings(BlockOptions):
    """Hold a system of a ladder."""

    conf: str
    set: Changes = Field({})


class SizeSettings(BlockOptions):
    """Hold a size: its seeds or their number, and a run's compute if records do not tell it."""

    seeds: Annotated[int | list[Seed], BeforeValidator(_two)]
    set: Changes = Field({})
    compute: Annotated[float | None, Field(gt=0), BeforeValidator(_number)] = None


class LadderSettings(_JudgedSettings):
    """Hold a ladder of runs. `rules` are powers of the option `width`; the rest is a study's."""

    recipe: str
    metric: str = "test_perplexity"
    options: Values = Field({})
    set: Changes = Field({})
    rates: Multiples = Field([])  # tried at the smallest size, for all sizes of an arm
    rates_set: Changes = Field({})
    threads: int = 1
    slurm: Values = Field({})
    width: str = ""
    rules: dict[str, float] = Field({})
    arms: dict[str, ArmSettings] = Field(min_length=2)
    sizes: Annotated[dict[str, SizeSettings], AfterValidator(_three)]


class PointSettings(_JudgedSettings):
    """Hold points: compute → system → score. `deviation` is a run's, of nats for a perplexity."""

    metric: str = "loss"
    deviation: Annotated[float, Field(gt=0)]
    points: Annotated[dict[str, dict[str, float]], AfterValidator(_three)]


@dataclass(frozen=True)
class Ladder:
    """Hold a file; `study` has a member for each arm, size and seed, None for points."""

    tree: Tree
    settings: LadderSettings | PointSettings
    study: Study | None

    @property
    def arms(self) -> list[str]:
        """Return the systems, baseline first."""
        of = self.settings
        listed = of.arms if isinstance(of, LadderSettings) else next(iter(of.points.values()))
        return [of.baseline, *(name for name in listed if name != of.baseline)]

    @property
    def systems(self) -> dict[str, str]:
        """Return the arm of each system of the study, ARM_SIZE."""
        sizes = self.settings.sizes if isinstance(self.settings, LadderSettings) else ()
        return {f"{arm}_{size}": arm for size in sizes for arm in self.arms}


def read_ladder(file: Path, options: Mapping[str, str] | None = None) -> Ladder:
    """Read a ladder of runs, or of points; `options` replace those of the recipe."""
    tree = read_tree(file)
    if "points" in tree.values:
        points = validated(PointSettings, tree)
        _check_arms(points, points.points, tree)
        return Ladder(tree, points, None)
    settings = validated(LadderSettings, tree)
    _check_arms(settings, {"": settings.arms}, tree)
    _check_sizes(settings, tree)
    kept = {*"recipe options rates rates_set metric threads slurm".split()} & {*tree.values}
    values = {name: tree.values[name] for name in kept}
    values["members"] = dict(_members(settings, tree))
    first = next(iter(settings.sizes))
    names = {f"{arm}_{size}": f"{arm}_{first}" for arm in settings.arms for size in settings.sizes}
    study = study_of(file, Tree(values, tree.places), options)
    return Ladder(tree, settings, replace(study, tuned_by=names))


def _check_arms(
    settings: "LadderSettings | PointSettings", rows: Mapping[str, Mapping[str, Any]], tree: Tree
) -> None:
    """Refuse sizes with other arms than the first, without the baseline, or without a compute."""
    first = next(iter(rows.values()))
    if settings.baseline not in first:
        raise ConfigurationError(
            f"{tree.place(('baseline',))}: baseline: no arm is named {settings.baseline}"
            f"{did_you_mean(settings.baseline, first)}"
        )
    for compute, row in rows.items():
        place = f"{tree.place(('points', compute))}: points.{compute}"
        if apart := sorted({*row} ^ {*first}):
            has, lacks = (compute, next(iter(rows)))[:: 1 if apart[0] in row else -1]
            raise ConfigurationError(
                f"{place}: {has} has {apart[0]}, and {lacks} has not: give each size the same arms"
            )
        at = _number(compute)
        if compute and not (isinstance(at, float) and 0 < at < math.inf):
            raise ConfigurationError(f"{place}: expected the compute of a run")
        if compute and [_number(other) for other in rows].count(at) > 1:
            raise ConfigurationError(f"{place}: another size has this compute; give another one")
        if compute and settings.in_nats and not min(row.values()) > 0:
            raise ConfigurationError(f"{place}: a perplexity is above 0")
    if len(first) < 2:
        raise ConfigurationError(f"{tree.place(('points',))}: points: one arm; give two or more")
    if not metric_named(settings.metric).better:
        place = tree.place(("metric",))
        raise ConfigurationError(
            f"{place}: metric {settings.metric}: nobody knows if more is better; take a loss, "
            "a perplexity or a score such as sacrebleu"
        )


def _check_sizes(settings: LadderSettings, tree: Tree) -> None:
    """Refuse sizes that do not grow: rates are tried, and rules begin, at the first."""
    names, of = list(settings.sizes), list(settings.sizes.values())
    if len({one.compute is None for one in of}) > 1:
        raise ConfigurationError(
            f"{tree.place(('sizes',))}: sizes: some have a compute; give it in each, or in none"
        )
    for what, values in (
        ("compute", [one.compute for one in of if one.compute is not None]),
        (settings.width, [one.set.get(settings.width) for one in of]),
    ):
        place = tree.place(("sizes", names[-1]))
        if not what:
            continue
        try:
            numbers = [float(str(value)) for value in values]
        except ValueError:
            numbers = [0.0]
        if not all(0 < n < math.inf for n in numbers) or numbers != sorted({*numbers}):
            raise ConfigurationError(
                f"{place}: {what} of the sizes is {', '.join(map(str, values))}: expected numbers "
                "above 0, the smallest first, no two alike"
            )
    if settings.width and not settings.rules:
        raise ConfigurationError(f"{tree.place(('width',))}: width: serves rules alone; give rules")
    members = [f"{arm}_{size}" for arm in settings.arms for size in names]
    if twice := [name for name in members if members.count(name) > 1]:
        raise ConfigurationError(f"{tree.place(('arms',))}: arms: two members are named {twice[0]}")


def _members(settings: LadderSettings, tree: Tree) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ARM_SIZE and its member of a study; a rule scales an option from the first size."""
    width, start = settings.width, next(iter(settings.sizes.values())).set
    for size, of in settings.sizes.items():
        for arm, one in settings.arms.items():
            if twice := sorted(one.set.keys() & of.set):
                raise ConfigurationError(
                    f"{tree.place(('arms', arm))}: arms.{arm}: sets {twice[0]}, which sizes.{size} "
                    "sets for every arm; remove one"
                )
            changes = settings.set | one.set
            for name, power in settings.rules.items():
                if name not in changes or name in of.set or not {width} <= {*of.set} & {*start}:
                    raise ConfigurationError(
                        f"{tree.place(('rules', name))}: rules.{name}: give {name} in `set` of the "
                        f"file or of each arm, and `width` ({width or 'missing'}) in each size"
                    )
                changes |= {name: _scaled(changes[name], of.set[width], start[width], power)}
                if changes[name] is None:
                    raise ConfigurationError(
                        f"{tree.place(('rules', name))}: rules.{name}: no finite multiple at {size}"
                    )
            seeds = of.seeds if isinstance(of.seeds, list) else list(range(1, of.seeds + 1))
            tree.places["members", f"{arm}_{size}"] = tree.place(("sizes", size))
            yield f"{arm}_{size}", {"conf": one.conf, "set": changes | of.set, "seeds": seeds}


def _scaled(value: Any, width: Any, start: Any, power: float) -> float | None:
    """Return value × (width / start)^power to four digits, None if that is no number."""
    try:
        found = float(f"{float(value) * (float(width) / float(start)) ** power:.4g}")
    except (ValueError, OverflowError, TypeError):
        return None
    return found if math.isfinite(found) and (found or not float(value)) else None


def check_tokens(ladder: Ladder, members: Sequence[PreparedMember]) -> None:
    """Refuse an arm that reads another number of tokens than the baseline of its size."""
    of = {one.member.system: one.settings.train for one in members}
    base, *others = ladder.arms
    assert isinstance(ladder.settings, LadderSettings)
    for size in ladder.settings.sizes:
        for arm, name in itertools.product(others, _TOKENS):
            own, control = of[f"{arm}_{size}"].get(name), of[f"{base}_{size}"].get(name)
            if own != control:
                raise ConfigurationError(
                    f"{ladder.tree.place(('arms', arm))}: arms.{arm}: {name} is {own} at {size}, "
                    f"and {control} of {base}: arms read the same tokens; give {name} in sizes"
                )


def check_records(ladder: Ladder, members: Sequence[PreparedMember], paths: Sequence[Path]) -> None:
    """Refuse a record of which an option is not that of its member, as the file defines it.

    Where the file tries rates, the records of an arm have one multiple of its own `lr`.
    """
    settings, study = ladder.settings, ladder.study
    assert isinstance(settings, LadderSettings) and study is not None
    of = {one.name: one for one in members}
    multiples = dict.fromkeys(ladder.arms, settings.rates)
    for path in paths:
        if path.stem not in of:
            continue
        record = load_record(path)
        if not record.get("config"):
            raise ValueError(f"{path}: does not state its options (config): leave it out")
        arm = ladder.systems[of[path.stem].member.system]
        there = flat_settings({"config": plain_numbers(record["config"])})
        stated = flat_settings({"config": plain_numbers(of[path.stem].settings.blocks())})
        for name in sorted(there.keys() | stated.keys()):
            found, own = there.get(name), stated.get(name)
            if name == "train.lr" and settings.rates and isinstance(own, int | float):
                multiples[arm] = [n for n in multiples[arm] if scaled_rate(own, n) == found]
                own = found if multiples[arm] else f"{own}, with one multiple for {arm}"
            if own != found:
                raise ValueError(
                    f"{path}: {name} is {found}, and {study.file} gives {own}: take records of it"
                )
