"""Resolve the members of a study: configuration, key, folders and the command of each."""

import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from highrank_plugins.common.blocks import ConfigurationError, read_tree
from highrank_plugins.common.files import CODE, checksum, files_digest, write_text
from highrank_plugins.common.provenance import PACKAGES, machine_kind
from highrank_plugins.data.corpora.word_corpora import PTB, WIKITEXT2
from highrank_plugins.results.doubts import flat_settings
from highrank_plugins.results.record import RESULTS, load_record
from highrank_plugins.studies.definition import (
    RECIPES,
    Member,
    Study,
    as_word,
    named_path,
    script_options,
)
from highrank_plugins.training import configuration
from highrank_plugins.training.configuration import Configuration
from highrank_plugins.training.model_size import COUNTED, By, Match, check_options, solve

# Raise this number when a change of the package or of a recipe gives any run other numbers: an
# initialisation, a loss, an order of sums, a default, a score, a stage. Every member then has
# another key, and finished ones are run again. A change that keeps all numbers keeps it.
NUMERICS_VERSION = 2
MEMBERS = "members"  # in the recipe's folder of --exp-dir: a folder for each key
NOT_RUN, DIVERGED = "not run", "diverged (NaN)"  # two reasons why members have no record
UNFAIR = "a seed diverged, and the seeds that are left are no fair sample"
_TYPES = {"ptb": PTB.types, "wikitext2": WIKITEXT2.types}
_SPECIAL_WORDS = 4


@dataclass(frozen=True)
class PreparedMember:
    """Hold a member that can be run: its keys, the command of its recipe and its folder."""

    system: str
    seed: int
    settings: Configuration
    key: str
    command: Sequence[str]
    run_dir: Path
    plan_key: str  # before its learning rate was chosen
    system_key: str  # without its seed

    @property
    def name(self) -> str:
        """Return SYSTEM-SEED."""
        return f"{self.system}-{self.seed}"

    @property
    def record(self) -> Path:
        return self.run_dir / RESULTS

    def note(self, kind: str) -> Path:
        """Return a file beside its folder: done, or failed (says how)."""
        return self.run_dir.with_name(f"{self.key}.{kind}")

    def is_done(self) -> bool:
        return self.note("done").exists() and self.record.is_file()

    def metrics(self) -> dict[str, float]:
        try:
            return dict(load_record(self.record, finite=False)["metrics"])
        except ValueError as error:
            raise ValueError(
                f"{error}; or delete {self.run_dir}, and the study runs {self.name} again"
            ) from None

    def machine(self) -> str:
        """Return the kind of machine that ran it; empty if it is not done or does not say."""
        record = load_record(self.record, finite=False) if self.is_done() else {}
        return machine_kind(record.get("hardware", {}))

    def problem(self) -> str | None:
        """Return why a table cannot show it: not run, failed or diverged; None if it can."""
        if self.is_done():
            return None if all(map(math.isfinite, self.metrics().values())) else DIVERGED
        failed = self.note("failed")
        return failed.read_text(encoding="utf-8").strip() if failed.exists() else NOT_RUN


def member_key(study: Study, settings: Configuration, seeded: bool = True) -> str:
    """Return a digest of configuration with its seed, options, data, versions and user's code.

    Equal keys give equal numbers on one machine. Names of members do not count. For the
    code of this package and of its recipes stands `NUMERICS_VERSION`; a recipe of the user counts
    by its lines without comments. The recipe's own keys cannot stand here: they have the inputs of
    each stage, which earlier stages write.
    """
    defaults = script_options(study.recipe)
    named = {n: named_path(n, word, Path(), defaults) for n, word in study.options.items()}
    words = {name: word for name, word in study.options.items() if named[name] is None}
    data = {name: files_digest(path) for name, path in named.items() if path}
    is_ours = study.recipe.parent == RECIPES
    script = "" if is_ours else (study.recipe / "run.sh").read_text(encoding="utf-8")
    kinds = ("corpus",) if is_ours else ("corpus", "sizes")
    tables = [f for kind in kinds for f in study.recipe.glob(f"{kind}*.yaml")]
    user_dir = settings.train.get("user_dir")
    configuration = settings.blocks()
    if not seeded:
        configuration["train"].pop("seed", None)
    content = {
        "numerics": NUMERICS_VERSION,
        "recipe": study.recipe.name,
        "script": [s for line in script.splitlines() if (s := line.strip()) and s[0] != "#"],
        "corpus": {file.name: checksum(file) for file in tables},
        "configuration": configuration,
        "options": words,
        "threads": study.settings.threads,  # they change the order of sums
        "data": data,
        "user_dir": files_digest(Path(str(user_dir)), *CODE) if user_dir else "",
        "versions": {name: version(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def study_folder(study: Study, exp_dir: Path) -> Path:
    return exp_dir / study.recipe.name / "studies" / study.name


def prepare(study: Study, exp_dir: Path, check_values: bool = False) -> list[PreparedMember]:
    """Return all members; sizes of matched controls are solved for once, and kept."""
    trees = (read_tree(path).values for path in (study.recipe / "conf").rglob("*.yaml"))
    known = {name for tree in trees for name in flat_settings({"config": tree})}
    members: list[PreparedMember] = []
    names: dict[str, str] = {}
    checked = set[str]()
    for member in study.members:
        conf = _named(study, member.conf)
        changes = {**member.changes, **_matched(study, member, conf, exp_dir), "seed": member.seed}
        settings = configuration.load(conf, sets := _assignments(changes))
        plan_key = member_key(study, settings)
        if member.rate != 1:
            changes["lr"] = _scaled_rate(settings.train.get("lr"), member.rate)
            settings = configuration.load(conf, sets := _assignments(changes))
        given = {name if "." in name else f"train.{name}" for name in member.changes}
        if member.system not in checked and (check_values or given - known):
            _check_values(study, member, conf, sets)
        checked.add(member.system)
        key = member_key(study, settings)
        if (same := names.setdefault(key, member.name)) != member.name:  # 1 is 1.0
            raise ConfigurationError(
                f"{study.file}: {member.name} and {same} are one run: the same configuration, "
                "seed and data; leave one out"
            )
        run_dir = exp_dir / study.recipe.name / MEMBERS / key
        words = ["bash", str(study.recipe / "run.sh"), "--conf", member.conf]
        words += ["--name", f"{MEMBERS}/{key}", "--exp-dir", str(exp_dir)]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in study.options.items()]
        words += [f"--set={assignment}" for assignment in sets]
        of = member.system, member.seed, settings, key, words, run_dir
        members.append(PreparedMember(*of, plan_key, member_key(study, settings, seeded=False)))
    return members


def _scaled_rate(lr: Any, rate: float) -> float:
    """Return a learning rate, a number or its word, at a multiple."""
    try:
        return float(f"{float(lr) * rate:.4g}")
    except (TypeError, ValueError):
        raise ConfigurationError(f"rates: lr {lr} has no multiples; give one number") from None


def _assignments(changes: dict[str, Any]) -> list[str]:
    return [f"{name}={as_word(value)}" for name, value in changes.items()]


def _named(study: Study, name: str) -> Path:
    """Return the configuration that a name stands for at the scale of a study."""
    return find_configuration(study.recipe, name, study.options.get("scale") == "small")


def _check_values(study: Study, member: Member, conf: Path, sets: list[str]) -> None:
    tree = configuration.load_tree(conf, sets)
    try:
        check_options(configuration.validate(tree), tree)
    except ConfigurationError as error:
        raise ConfigurationError(f"{study.file}: {member.system}: {error}") from None


def _matched(study: Study, member: Member, conf: Path, exp_dir: Path) -> dict[str, Any]:
    """Return the sizes of a matched control; they are solved for once per question."""
    if member.match is None:
        return {}
    match = member.match
    system = configuration.load(conf, _assignments(dict(member.changes)))
    shared = _assignments(study.settings.set)
    reference = configuration.load(_named(study, match.to), shared)
    question = json.dumps([COUNTED, system.text(), reference.text(), match.model_dump()])
    file = study_folder(study, exp_dir) / "matched" / f"{member.system}.yaml"
    if file.is_file():
        kept = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if kept.get("question") == question:
            return dict(kept["options"])
    print(f"{member.system}: solving for sizes, by {match.by}", file=sys.stderr)
    try:
        words = match.words or shared_dictionary_size(study.recipe.name, system, reference)
        models = system.options("train"), reference.options("train")
        found = solve(*models, match.by, words, match.free, match.step)
    except ValueError as error:
        raise ConfigurationError(f"{study.file}: {member.system}: match: {error}") from None
    write_text(file, yaml.safe_dump({"options": found.options, "question": question}))
    return dict(found.options)


def find_configuration(recipe: Path, name: str, small: bool = True) -> Path:
    """Return conf/NAME.yaml or, if it may be `small`, conf/small/NAME.yaml."""
    paths = [recipe / "conf" / f"{name}.yaml", recipe / "conf/small" / f"{name}.yaml"]
    found = [path for path in paths[: 1 + small] if path.is_file()]
    if not found:
        read_tree(paths[0])  # its message lists the available names
    return found[0]


def shared_dictionary_size(recipe: str, system: Configuration, reference: Configuration) -> int:
    """Return how many entries the dictionary of two configurations will have."""
    sizes = []
    for settings in (system, reference):
        kept = (settings.corpus or {}).get("vocab_size")
        size = _TYPES.get(recipe) if kept is None else int(kept) + _SPECIAL_WORDS
        size = size if settings.data is None else settings.data.vocab_size
        if size is None:
            raise ConfigurationError(
                f"{recipe}: the configuration does not state the number of words; give --words to "
                "highrank match, or `words` in `match` of a study"
            )
        sizes.append(size)
    if sizes[0] != sizes[1]:
        raise ConfigurationError(
            f"the dictionaries differ: {sizes[0]:,} words, and {sizes[1]:,} in the model to match; "
            "choose configurations of one text, or give --words (`words` in a study)"
        )
    return sizes[0]


def matched_yaml(base: Path, match: Match, by: By, title: str, folder: Path) -> str:
    """Return a configuration in `folder` with the sizes of a match over those of `base`."""
    size, target = match.size, match.target
    lines = [
        f"# {title}: {size.parameters:,} parameters and {size.compute:,} operations per token;",
        f"# matched by {by} to a model with {target.parameters:,} and {target.compute:,}.",
    ]
    tree = {"base": os.path.relpath(base, folder), "train": match.options}
    return "\n".join(lines) + "\n" + yaml.safe_dump(tree, sort_keys=False)
