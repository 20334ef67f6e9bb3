"""Judge a difference over sizes: LADDER.yaml is a study at each size, or points of others."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from highrank_plugins.common.blocks import BlockOptions, Tree, read_tree, validated
from highrank_plugins.common.options import Range
from highrank_plugins.results.doubts import kind_of
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import BoundedFloat
from highrank_plugins.studies.definition import (
    Changes,
    RunSettings,
    Study,
    check_baseline,
    study_of,
    within,
    wrong,
)
from highrank_plugins.studies.members import PreparedMember

DECADE = 10
COMPUTE, DEVIATION = Range(1e-30, 1e99), Range(1e-30, 1e30)  # squares of squares stay finite
ALIKE = 1e-6  # relative difference of computes that are one
# options that decide how many tokens a run reads
_TOKENS = """max_update max_epoch max_tokens batch_size bptt tokens_per_sample update_freq
    distributed_world_size""".split()


class _JudgedSettings(BlockOptions):
    """Hold what a file of runs and one of points say; `target` is in computes of the largest."""

    baseline: str
    metric: str
    target: Annotated[float, within(Range(1, DECADE, above_low=True))] = DECADE

    @property
    def in_nats(self) -> bool:
        return kind_of(self.metric) == "perplexity"


class ArmSettings(BlockOptions):
    conf: str
    set: Changes = Field({})


class SizeSettings(BlockOptions):
    """Hold a size: the number of its seeds, and a run's compute if records do not tell it."""

    seeds: Annotated[int, within(Range(2, 1000))]
    set: Changes = Field({})
    # YAML reads 1e9 as text
    compute: Annotated[float, Field(strict=False), within(COMPUTE)] | None = None


class LadderSettings(_JudgedSettings, RunSettings):
    """Hold a ladder of runs; `rules` are powers of `width`, `rates` serve all sizes of an arm."""

    metric: str = "test_perplexity"
    width: str = ""
    rules: dict[str, float] = Field({})
    arms: dict[str, ArmSettings] = Field(min_length=2)
    sizes: dict[str, SizeSettings] = Field(min_length=3)  # any two fit a line


class PointSettings(_JudgedSettings):
    """Hold points: compute → system → score. `deviation` is a run's, of nats for a perplexity."""

    metric: str = "loss"
    deviation: Annotated[float, within(DEVIATION)]
    points: dict[str, dict[str, BoundedFloat]] = Field(min_length=3)


@dataclass(frozen=True)
class Ladder:
    """Hold a file with its arms, baseline first; `study` has a member for each arm, size and seed.

    Points have neither study nor sizes.
    """

    tree: Tree
    settings: LadderSettings | PointSettings
    arms: Sequence[str]
    sizes: Mapping[str, SizeSettings] = field(default_factory=dict)
    study: Study | None = None

    @property
    def systems(self) -> dict[str, str]:
        """Return the arm of each system of the study, ARM_SIZE."""
        return {f"{arm}_{size}": arm for size in self.sizes for arm in self.arms}


def read_ladder(file: Path, options: Mapping[str, str] | None = None) -> Ladder:
    """Read a ladder of runs, or of points; `options` replace those of the recipe."""
    tree = read_tree(file)
    if "points" in tree.values:
        points = validated(PointSettings, tree)
        _check_points(points, tree)
        return Ladder(tree, points, _arms(points, next(iter(points.points.values())), tree))
    settings = validated(LadderSettings, tree)
    arms = _arms(settings, settings.arms, tree)
    _check_sizes(settings, tree)
    kept = ({*RunSettings.model_fields, "metric"} - {"set"}) & {*tree.values}
    values = {name: tree.values[name] for name in kept}
    values["members"] = dict(_members(settings, tree))
    first = next(iter(settings.sizes))
    names = {f"{arm}_{size}": f"{arm}_{first}" for arm in settings.arms for size in settings.sizes}
    study = study_of(file, Tree(values, tree.places), options)
    return Ladder(tree, settings, arms, settings.sizes, replace(study, tuned_by=names))


def grow(numbers: Sequence[float]) -> bool:
    """Whether each number is larger than the one before, so that a line goes through them."""
    return all(b > a * (1 + ALIKE) for a, b in itertools.pairwise(numbers))


def _number(value: Any) -> float:
    """Return a number of a file, also of text such as 1e9; NaN of other text."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _arms(settings: _JudgedSettings, arms: Mapping[str, Any], tree: Tree) -> list[str]:
    """Return the arms, baseline first; refuse none of it, and a metric that judges nothing."""
    check_baseline(settings.baseline, arms, tree)
    if len(arms) < 2:
        raise wrong("one arm; give two or more", tree, "points")
    if not metric_named(settings.metric).better:
        better = "take a loss, a perplexity or a score such as sacrebleu"
        said = f"nobody knows if more of {settings.metric} is better; {better}"
        raise wrong(said, tree, "metric")
    return [settings.baseline, *(name for name in arms if name != settings.baseline)]


def _check_points(settings: PointSettings, tree: Tree) -> None:
    """Refuse points with other arms than the first, or without a compute of their own."""
    first, arms = next(iter(settings.points.items()))
    computes = [*map(_number, settings.points)]
    for at, (compute, row) in zip(computes, settings.points.items(), strict=True):
        place = (tree, "points", compute)
        if apart := sorted({*row} ^ {*arms}):
            has, lacks = (compute, first) if apart[0] in row else (first, compute)
            same = "give each size the same arms"
            raise wrong(f"{has} has {apart[0]}, and {lacks} has not: {same}", *place)
        alike = sum(math.isclose(at, other, rel_tol=ALIKE) for other in computes)
        if COMPUTE.problem(at) or alike > 1:
            raise wrong("expected the compute of a run, which no other size has", *place)
        if settings.in_nats and not min(row.values(), default=1) > 0:
            raise wrong("a perplexity is above 0", *place)


def _check_sizes(settings: LadderSettings, tree: Tree) -> None:
    """Refuse sizes that do not grow: rates are tried, and rules begin, at the first."""
    names, of = list(settings.sizes), list(settings.sizes.values())
    if len({one.compute is None for one in of}) > 1:
        raise wrong("some have a compute; give it in each, or in none", tree, "sizes")
    for what, values in (
        ("compute", [one.compute for one in of if one.compute is not None]),
        (settings.width, [one.set.get(settings.width) for one in of]),
    ):
        if not what:
            continue
        numbers = [*map(_number, values)]
        if not all(0 < n < math.inf for n in numbers) or not grow(numbers):
            said = f"{what} of the sizes is {', '.join(map(str, values))}: expected numbers above 0"
            raise wrong(f"{said}, the smallest first, no two alike", tree, "sizes", names[-1])
    members = [f"{arm}_{size}" for arm in settings.arms for size in names]
    if twice := [name for name in members if members.count(name) > 1]:
        raise wrong(f"two members are named {twice[0]}", tree, "arms")


def _members(settings: LadderSettings, tree: Tree) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ARM_SIZE and its member of a study; a rule scales an option from the first size."""
    width, start = settings.width, next(iter(settings.sizes.values())).set
    for size, of in settings.sizes.items():
        for arm, one in settings.arms.items():
            if twice := sorted(one.set.keys() & of.set):
                why = f"sets {twice[0]}, which sizes.{size} sets for every arm; remove one"
                raise wrong(why, tree, "arms", arm)
            changes = settings.set | one.set
            for name, power in settings.rules.items():
                if name not in changes or name in of.set or not {width} <= {*of.set} & {*start}:
                    given = f"give {name} in `set` of the file or of each arm, and `width`"
                    why = f"{given} ({width or 'missing'}) in each size"
                    raise wrong(why, tree, "rules", name)
                changes |= {name: _scaled(changes[name], of.set[width], start[width], power)}
                if changes[name] is None:
                    raise wrong(f"no finite multiple at {size}", tree, "rules", name)
            tree.places["members", f"{arm}_{size}"] = tree.place(("sizes", size))
            seeds = [*range(1, of.seeds + 1)]
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
    of = {one.system: one.settings.train for one in members}
    base, *others = ladder.arms
    for size in ladder.sizes:
        for arm, name in itertools.product(others, _TOKENS):
            own, control = of[f"{arm}_{size}"].get(name), of[f"{base}_{size}"].get(name)
            if own != control:
                same = f"arms read the same tokens; give {name} in sizes"
                why = f"{name} is {own} at {size}, and {control} of {base}: {same}"
                raise wrong(why, ladder.tree, "arms", arm)
