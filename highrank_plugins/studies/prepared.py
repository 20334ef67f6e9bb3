"""Resolve the members of a study: configuration, key, folders and the command of each."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from highrank_plugins.common.files import read_json, write_json, write_text
from highrank_plugins.common.provenance import hardware, machine_kind
from highrank_plugins.common.yaml_tree import ConfigurationError, read_tree
from highrank_plugins.results.record import DIVERGED, RESULTS, load_record
from highrank_plugins.studies.definition import Member, Study, as_word
from highrank_plugins.studies.identity import member_key
from highrank_plugins.studies.matched import (
    find_configuration,
    match_configurations,
    shared_dictionary_size,
)
from highrank_plugins.training import configuration
from highrank_plugins.training.configuration import Configuration

MEMBERS = "members"  # in the recipe's folder of --exp-dir: a folder for each key
NOT_RUN = "not run"


@dataclass(frozen=True)
class PreparedMember:
    """Hold a member that can be run.

    Attributes:
        key: digest of everything that its numbers depend on.
        command: of its recipe.
        run_dir: folder that the recipe writes.
        finished: exists if the recipe has completed.
    """

    member: Member
    settings: Configuration
    key: str
    command: Sequence[str]
    run_dir: Path

    @property
    def name(self) -> str:
        """Return SYSTEM-SEED."""
        return self.member.name

    @property
    def record(self) -> Path:
        """Return the file of its record."""
        return self.run_dir / RESULTS

    @property
    def finished(self) -> Path:
        """Return the file that exists once the recipe has completed."""
        return self.run_dir.with_name(f"{self.key}.done")

    @property
    def failed(self) -> Path:
        """Return the file that says how its last run failed."""
        return self.run_dir.with_name(f"{self.key}.failed")

    @property
    def gpu(self) -> Path:
        """Return the file that names the GPU of its last run, if it had one."""
        return self.run_dir.with_name(f"{self.key}.gpu")

    def is_done(self) -> bool:
        """Whether the record of a complete run exists."""
        return self.finished.exists() and self.record.is_file()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of its record."""
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
        return self.failed.read_text(encoding="utf-8").strip() if self.failed.exists() else NOT_RUN


def check_machine(members: Sequence[PreparedMember]) -> None:
    """Refuse to run a seed on another kind of machine than its other members: seeds are blocks."""
    waiting = {member.member.seed for member in members if not member.is_done()}
    done = [one for one in members if one.member.seed in waiting and one.machine()]
    here = machine_kind(hardware()) if done else ""
    for one in done:
        if here and one.machine() != here:
            raise ValueError(
                f"{one.name} ran on {one.machine()}, and this machine is {here}: one seed has "
                "other numbers on each; resume there, or take another --exp-dir"
            )


def planned(folder: Path, at_most: int | None) -> int | None:
    """Return the seeds of a system that were planned first; write the plan down if it is new."""
    file = folder / "plan.json"
    if not file.is_file():
        if at_most is not None:
            write_json(file, at_most)
        return at_most
    plan = read_json(file)
    if type(plan) is not int or plan < 2:
        raise ValueError(f"{file}: not a number of seeds; write the one that was planned")
    return plan


def study_folder(study: Study, exp_dir: Path) -> Path:
    """Return the folder of a study's table, logs and links to its members."""
    return exp_dir / study.recipe.name / "studies" / study.name


def prepare(study: Study, exp_dir: Path, check_values: bool = False) -> list[PreparedMember]:
    """Return all members. Sizes of matched controls are solved for once, and kept.

    Args:
        check_values: check every option of every system by fairseq's parsers, which takes seconds.
            Otherwise the recipe of each member does.
    """
    check_options(study)
    members: list[PreparedMember] = []
    known: list[dict[str, Any]] = []
    for member in study.members:
        conf = _configuration_of(study, member)
        changes = dict(member.changes) | _matched(study, member, conf, exp_dir)
        changes["seed"] = member.seed
        sets = [f"{name}={as_word(value)}" for name, value in changes.items()]
        settings = configuration.load(conf, sets)
        if check_values and member.system not in {one.member.system for one in members}:
            _check_values(study, member, conf, sets)
        blocks = settings.blocks()
        if blocks in known:  # 1 is 1.0
            raise ConfigurationError(
                f"{study.file}: {member.name} and {members[known.index(blocks)].name} are one run: "
                "the same configuration, seed and data; leave one out"
            )
        known.append(blocks)
        key = member_key(study, settings)
        command = recipe_command(study, member.conf, f"{MEMBERS}/{key}", exp_dir, sets)
        run_dir = exp_dir / study.recipe.name / MEMBERS / key
        members.append(PreparedMember(member, settings, key, command, run_dir))
    return members


def _configuration_of(study: Study, member: Member) -> Path:
    """Return the file that the recipe will read for a member's `conf`; it may be missing."""
    folder = study.recipe / "conf"
    if member.conf.endswith(".yaml"):
        raise ConfigurationError(
            f"{study.file}: {member.system}: conf {member.conf}: expected the name of a file in "
            f"{folder}, without .yaml; copy yours there"
        )
    path = folder / f"{member.conf}.yaml"
    if study.options.get("scale") == "small" and not path.is_file():
        return folder / "small" / path.name
    return path


def recipe_command(
    study: Study, conf: str, name: str, exp_dir: Path, sets: Sequence[str]
) -> list[str]:
    """Return the words that run a recipe."""
    words = ["bash", str(study.recipe / "run.sh"), "--conf", conf, "--name", name]
    words += ["--exp-dir", str(exp_dir)]
    words += [f"--{option.replace('_', '-')}={value}" for option, value in study.options.items()]
    return words + [f"--set={assignment}" for assignment in sets]


def check_options(study: Study) -> None:
    """Refuse an option that no configuration of the recipe has and that fairseq does not know.

    fairseq, which takes seconds to import, is asked only about options that no file has.
    """
    given = {name: member for member in study.members for name in member.changes}
    unknown = {_whole(name): member for name, member in given.items()}
    for name in _options_of(study.recipe):
        unknown.pop(name, None)
    if not unknown:
        return
    from highrank_plugins.training.fairseq_options import PARSERS

    for name, member in unknown.items():
        if name.partition(".")[0] not in PARSERS:
            continue  # the recipe checks it
        value = next(v for key, v in member.changes.items() if _whole(key) == name)
        conf = _configuration_of(study, member)
        _check_values(study, member, conf, [f"{name}={as_word(value)}"])


def _check_values(study: Study, member: Member, conf: Path, sets: list[str]) -> None:
    """Refuse a configuration with an option that its command refuses."""
    from highrank_plugins.training.fairseq_options import check_options as check

    tree = configuration.load_tree(conf, sets)
    try:
        check(configuration.validate(tree), tree)
    except ConfigurationError as error:
        raise ConfigurationError(f"{study.file}: {member.system}: {error}") from None


def _whole(name: str) -> str:
    return name if "." in name else f"train.{name}"


def _options_of(recipe: Path) -> Iterator[str]:
    """Yield block.option for all options in the configurations of a recipe."""
    for path in (recipe / "conf").rglob("*.yaml"):
        for block, options in read_tree(path).values.items():
            if isinstance(options, dict):
                yield from (f"{block}.{option}" for option in options)


def _matched(study: Study, member: Member, conf: Path, exp_dir: Path) -> dict[str, Any]:
    """Return the sizes of a matched control; they are solved for once per question."""
    if member.match is None:
        return {}
    match = member.match
    sets = [f"{name}={as_word(value)}" for name, value in member.changes.items()]
    shared = [f"{name}={as_word(value)}" for name, value in study.settings.set.items()]
    system = configuration.load(conf, sets)
    reference = configuration.load(find_configuration(study.recipe, match.to), shared)
    question = json.dumps([system.text(), reference.text(), match.model_dump()])
    file = study_folder(study, exp_dir) / "matched" / f"{member.system}.yaml"
    if file.is_file():
        kept = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if kept.get("question") == question:
            return dict(kept["options"])
    print(f"{member.system}: solving for sizes, by {match.by}", file=sys.stderr)
    try:
        words = match.words or shared_dictionary_size(study.recipe.name, system, reference)
        found = match_configurations(
            system, reference, match.by, words=words, free=tuple(match.free), step=match.step
        )
    except ValueError as error:
        raise ConfigurationError(f"{study.file}: {member.system}: match: {error}") from None
    write_text(file, yaml.safe_dump({"options": found.options, "question": question}))
    return dict(found.options)
