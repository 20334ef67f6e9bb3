"""Read STUDY.yaml: configurations × seeds × grids of options × matched controls → members."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

import highrank_plugins
from highrank_plugins.common.blocks import (
    BlockOptions,
    ConfigurationError,
    Tree,
    option,
    read_tree,
    validated,
)
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.options import RANGES, Range
from highrank_plugins.training.configuration import Scalar
from highrank_plugins.training.launch.batch_job import check_characters

RECIPES = Path(highrank_plugins.__file__).resolve().parents[1] / "recipes"
_NAME = re.compile(r"[A-Za-z0-9][\w.=+-]*")
_NUMBERS = {*"limit measured_updates processes".split()}  # options of recipes that are numbers
_OWN = {*"conf name exp_dir set stage stop_stage".split()}  # options that a study gives itself
Values = dict[str, Scalar]


def _short(values: dict[str, Any]) -> dict[str, Any]:
    """Return options of block train without the name of the block, so that each has one name."""
    short = {name.removeprefix("train."): value for name, value in values.items()}
    if len(short) < len(values):
        twice = [name for name in values if f"train.{name}" in values]
        raise ValueError(f"{twice[0]} and train.{twice[0]} are one option; keep one")
    return short


def _writable(values: dict[str, Any]) -> dict[str, Any]:
    check_characters(f"{name}: {as_word(value)}" for name, value in values.items())
    return values


def _distinct(values: list[Any]) -> list[Any]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{twice[0]} is listed twice")
    return values


def within(bounds: Range) -> AfterValidator:
    """Return a check of a number, which names both bounds as those of other options do."""

    def check(value: float) -> float:
        if problem := bounds.problem(value):
            raise ValueError(problem)
        return value

    return AfterValidator(check)


Changes = Annotated[Values, AfterValidator(_short)]
Varied = Annotated[list[Scalar], Field(min_length=1)]
Seed = Annotated[int, within(RANGES["seed"])]  # as NumPy takes it
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]
Multiple = Annotated[float, within(Range(0, above_low=True))]
Multiples = Annotated[list[Multiple], Field(min_length=2), AfterValidator(_distinct)]
TriedRates = Mapping[str, Mapping[float, float]]  # system → multiple → nats


class MatchSettings(BlockOptions):
    """Hold the target of a member's sizes, as `highrank match` takes it."""

    to: str
    by: Literal["parameters", "compute", "width"] = "parameters"
    words: Annotated[int, within(Range(5))] | None = None
    step: Annotated[int, within(Range(1))] = 4
    free: list[str] = Field([])


class MemberSettings(BlockOptions):
    """Hold a configuration and how it varies: each entry of grid × variants is a system."""

    conf: str
    set: Changes = Field({})  # as the recipe's --set takes them
    grid: Annotated[dict[str, Varied], AfterValidator(_short)] = Field({})
    variants: list[Changes] = Field(default=[], alias="list")
    match: MatchSettings | None = None
    seeds: Seeds | None = None


class RunSettings(BlockOptions):
    """Hold what STUDY.yaml and LADDER.yaml say of their runs; paths are relative to the file."""

    recipe: str  # a name, or the path of a folder with run.sh
    options: Values = Field({})  # further ones of run.sh
    set: Changes = Field({})  # over the configuration of every member
    rates: Multiples = Field([])  # multiples of lr, tried with the first seed of each system
    rates_set: Changes = Field({})  # makes these trials shorter
    threads: Annotated[int, within(Range(1))] = 1  # cores that each member uses
    # options of sbatch; true gives an option without a value, false leaves it out
    slurm: Annotated[Values, AfterValidator(_writable)] = Field({})


class StudySettings(RunSettings):
    """Hold the contents of a file STUDY.yaml."""

    seeds: Seeds = Field([1, 2, 3])
    metric: str | None = None
    baseline: str | None = None
    test: Literal["student", "welch"] = "student"
    members: dict[str, MemberSettings] = Field(min_length=1)


@dataclass(frozen=True)
class Member:
    """Hold one run: a system with a seed; its lr is `rate` times that of conf and changes."""

    system: str
    seed: int
    conf: str
    changes: Mapping[str, Any]
    match: MatchSettings | None = None
    rate: float = 1.0

    @property
    def name(self) -> str:
        """Return SYSTEM-SEED."""
        return f"{self.system}-{self.seed}"


@dataclass(frozen=True)
class Study:
    """Hold a study, named after its file; `options` has words for run.sh and absolute paths."""

    name: str
    file: Path
    recipe: Path
    options: Mapping[str, str]
    settings: StudySettings
    members: Sequence[Member]
    tuned_by: Mapping[str, str] = field(default_factory=dict)  # system → whose rate it takes
    rates: TriedRates = field(default_factory=dict)  # by which the members' rates were chosen


def wrong(why: str, tree: Tree, *path: str) -> ConfigurationError:
    """Return the error of a value in a file, with its place and name."""
    return ConfigurationError(f"{tree.place(path)}: {'.'.join(path)}: {why}")


def read_study(file: Path, options: Mapping[str, str] | None = None) -> Study:
    """Read a study; `options`, relative to this directory, replace those of the file."""
    return study_of(file, read_tree(file), options)


def study_of(file: Path, tree: Tree, options: Mapping[str, str] | None) -> Study:
    settings = validated(StudySettings, tree)
    recipe = recipe_folder(settings.recipe, file.parent)
    known = script_options(recipe)
    words = {}
    for of, below in ((settings.options, file.parent), (options or {}, Path())):
        for name, value in of.items():
            path = named_path(name, value, below, known) if isinstance(value, str) else None
            words[name] = as_word(value if path is None else path)
    _check_recipe_options(words, recipe, known, tree)
    for name in ("lr", "seed") if settings.rates else settings.rates_set:
        if name in settings.rates_set:
            why = "trials have the rates and the first seed" if settings.rates else "give rates"
            raise wrong(f"changes no trial; {why}", tree, "rates_set", name)
    members = _members(settings, tree)
    if settings.baseline is not None:
        check_baseline(settings.baseline, [member.system for member in members], tree)
    return Study(file.stem, file, recipe, words, settings, members)


def check_baseline(baseline: str, systems: Iterable[str], tree: Tree) -> None:
    """Refuse a baseline that is no system of the file."""
    if baseline not in (known := list(systems)):
        near = did_you_mean(baseline, known)
        raise wrong(f"no system is named {baseline}{near}", tree, "baseline")


def first_seeds(members: Sequence[Member], most: int) -> list[Member]:
    """Return the members with the first seeds of each system."""
    by_system = itertools.groupby(members, lambda member: member.system)
    return [member for _, own in by_system for member in itertools.islice(own, most)]


def recipe_folder(name: str, below: Path) -> Path:
    """Return the folder of a recipe: one of the repository, or a folder with run.sh `below`."""
    for folder in (RECIPES / name, below / name):
        if (folder / "run.sh").is_file():
            return folder.resolve()
    known = [script.parent.name for script in RECIPES.glob("*/run.sh")]
    raise ConfigurationError(
        f"recipe {name}: neither a recipe nor a folder with run.sh{did_you_mean(name, known)}"
    )


def named_path(name: str, value: str, below: Path, defaults: Mapping[str, str]) -> Path | None:
    """Return the file or folder that an option of run.sh names, or DIR/NAME of NAME.LANGUAGE.

    An option with a default has words for values, apart from `data`.
    """
    if not value or (name != "data" and defaults.get(name)):
        return None
    path = below / value
    beside = path.parent.glob("*") if name == "data" else ()
    is_there = path.exists() or any(other.name.startswith(f"{path.name}.") for other in beside)
    return path.resolve() if is_there else None


def _check_recipe_options(
    options: Mapping[str, str], recipe: Path, known: Mapping[str, str], tree: Tree
) -> None:
    """Refuse options that run.sh lacks, and those that the study itself gives."""
    for name in options:
        place, value = (tree, "options", name), options[name]
        if name in _OWN:
            raise wrong("the study itself gives this option to run.sh; remove it", *place)
        if known and name not in known:  # a script may read its options in another way
            raise wrong(f"no option of {recipe / 'run.sh'}{did_you_mean(name, known)}", *place)
        if name in _NUMBERS and value and not value.isdecimal():
            raise wrong(f"expected a number, got {value}", *place)
        is_missing = value and named_path(name, value, Path(), known) is None
        if name == "data" and known and is_missing:  # every member would fail
            raise wrong(f"{value}: no such folder", *place)


def script_options(recipe: Path) -> dict[str, str]:
    """Return the options of run.sh and of its libraries; one with a default is no path."""
    script = (recipe / "run.sh").read_text(encoding="utf-8").partition("\nparse_options")[0]
    texts = [script]
    for text in texts:  # it grows
        names = re.findall(r"^source .*/([a-z_]+\.sh)", text, re.MULTILINE)
        files = [file for name in names if (file := RECIPES / "lib" / name).is_file()]
        texts += [file.read_text(encoding="utf-8") for file in files]
    shared = [re.search(r"(?ms)^# Options$.*?^$", text) for text in reversed(texts[1:])]
    blocks = [*(found.group() for found in shared if found), script]  # run.sh has the last word
    return dict(re.findall(r"^([a-z][a-z0-9_]*)=(\S*)\s.*# ", "\n".join(blocks), re.MULTILINE))


def as_word(value: Any) -> str:
    """Return a value of YAML as --set takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _members(settings: StudySettings, tree: Tree) -> list[Member]:
    members: list[Member] = []
    known = set[str]()
    for key, member in settings.members.items():
        for system, changes in _systems(key, member, tree):
            if system in known:
                after = f"name it after what differs, such as {key}_{{option}}"
                raise wrong(f"a second member named {system}; {after}", tree, "members", key)
            known.add(system)
            changes = settings.set | member.set | changes
            if "seed" in changes:
                raise wrong("the seed is an option; list seeds in `seeds`", tree, "members", key)
            seeds = member.seeds or settings.seeds
            members += [Member(system, s, member.conf, changes, member.match) for s in seeds]
    return members


def _systems(key: str, member: MemberSettings, tree: Tree) -> Iterator[tuple[str, Values]]:
    """Yield name and options of the systems of a key, which may have {option} to fill in."""
    place = (tree, "members", key)
    for variant in member.variants or [{}]:
        for values in itertools.product(*member.grid.values()):
            changes = variant | dict(zip(member.grid, values, strict=True))
            words = {name.replace(".", "_"): as_word(value) for name, value in changes.items()}
            name = "_".join([key, *(f"{option}_{value}" for option, value in words.items())])
            if "{" in key:
                try:
                    name = key.format_map(words)
                except (KeyError, ValueError, AttributeError, TypeError) as error:
                    listed = ", ".join(words) or "none"
                    raise wrong(f"unknown option {error}; known: {listed}", *place) from None
            if not _NAME.fullmatch(name):
                valid = "use letters, digits and ._=+-"
                raise wrong(f"{name!r} is not a valid member name: {valid}", *place)
            yield name, changes


class RaceSettings(BlockOptions):
    """Say which output layers race on the features of one trunk, and how they are trained."""

    exp_dir: Path = option(Path("exp/race"), "Folder for features, records and the table.")
    layers: str = option(
        "softmax,sigsoftmax,gss,plif,softcap,mos,moc,mixtape,mos_sigsoftmax",
        "Output layers, separated by commas; softmax, the baseline, among them.",
    )
    seeds: int = option(10, "Number of seeds of each layer.", ge=2)
    rates: str = option(
        "0.3,1,3", "Multiples of --lr; each layer has its best one on the validation text."
    )
    lr: float = option(0.001, "Learning rate of Adam; falls linearly to 0.", ge=1e-9)
    epochs: int = option(2, "Number of passes over the training features.", ge=1)
    batch: int = option(500, "Number of tokens in an update.", ge=1)
    components: int = option(4, "Number of components of a mixture.", ge=1)
    tokens: int = option(200_000, "Take the first N tokens of each text.", ge=2)
    jobs: int | None = option(
        None, "Number of layers to train at a time, one core each (default: cores).", ge=1
    )

    def updates(self, size: int) -> int:
        return self.epochs * -(-size // self.batch)
