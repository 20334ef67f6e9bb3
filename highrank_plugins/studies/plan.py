"""Plan a study before it runs, and hold its table to the plan: seeds, metric, members."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from highrank_plugins.analysis.statistics import PlannedTest, seeds_needed, smallest_effect
from highrank_plugins.common.files import read_json, require_space, write_json
from highrank_plugins.common.formatting import size
from highrank_plugins.reports.tables import Cell, Table
from highrank_plugins.results import comparison
from highrank_plugins.results.doubts import to_nats
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import RESULTS, load_record
from highrank_plugins.results.results_table import read_runs
from highrank_plugins.studies.definition import Member, Study
from highrank_plugins.studies.members import PreparedMember
from highrank_plugins.studies.runner import bytes_in, bytes_needed

FILE = "plan.json"
MOST_SEEDS = 100_000  # that a forecast names
DAMAGED = "damaged; restore it, or run the study in another --exp-dir"
LIKE = "give --like FOLDER of a study like it"
# "seeds", of each system at the first look, and "most" at the last; settings and keys of members;
# a digest if it was registered
StudyPlan = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """Hold a study with its members, the folder of its tables, and its plan, if any."""

    study: Study
    members: Sequence[PreparedMember]
    folder: Path
    plan: StudyPlan | None

    @cached_property
    def problems(self) -> dict[str, str]:
        return {one.name: problem for one in self.members if (problem := one.problem())}

    @cached_property
    def systems(self) -> dict[str, list[PreparedMember]]:
        found: dict[str, list[PreparedMember]] = {}
        for one in self.members:
            found.setdefault(one.system, []).append(one)
        return found

    @cached_property
    def planned(self) -> dict[str, list[str]]:
        """Return the seeds of each system in the plan, if any."""
        return {} if self.plan is None else seeds_of(self.plan["keys"])

    @cached_property
    def due(self) -> set[str]:
        """Return the members that this look may have: by the plan its first seeds, or all."""
        if self.plan is None:
            return {one.name for one in self.members}
        most = max(self.plan["seeds"], most_seeds(self.members))
        return {f"{of}-{seed}" for of, seeds in self.planned.items() for seed in seeds[:most]}

    @property
    def may_grow(self) -> bool:
        """Whether the plan lets seeds be added after a look; their order then tells the looks."""
        return self.plan is not None and self.plan["most"] > self.plan["seeds"]

    @property
    def is_beyond(self) -> bool:
        """Whether there are more seeds than the plan has at most."""
        return self.plan is not None and most_seeds(self.members) > self.plan["most"]

    @property
    def test(self) -> PlannedTest:
        looks = (self.plan["seeds"], self.plan["most"]) if self.plan and self.may_grow else None
        return PlannedTest(self.study.settings.test, looks)


def read_mapping(file: Path, kind: type = object, damaged: str = DAMAGED) -> dict[str, Any]:
    """Return the mapping in a file of a study's folder; its values are of one kind."""
    found = read_json(file)
    if not (isinstance(found, dict) and all(isinstance(one, kind) for one in found.values())):
        raise ValueError(f"{file}: {damaged}")
    return found


def planned(folder: Path) -> StudyPlan | None:
    """Return the plan of a study, if it has one."""
    file = folder / FILE
    if not file.exists():
        return None
    plan = read_mapping(file)
    keys, seeds, most = (plan.get(name) for name in ("keys", "seeds", "most"))
    whole = type(seeds) is type(most) is int and 2 <= seeds <= most
    if not whole or not isinstance(keys, dict) or {*map(type, keys.values())} - {str}:
        raise ValueError(f"{file}: {DAMAGED}")
    if "sha256" in plan and plan["sha256"] != _digest(plan):
        raise ValueError(
            f"{file}: changed after it was registered; restore it, or choose another --exp-dir"
        )
    return plan


def most_seeds(members: Sequence[Member | PreparedMember]) -> int:
    return max(map(len, seeds_of(one.name for one in members).values()))


def forecast(
    study: Study,
    members: Sequence[PreparedMember],
    like: Path | None,
    effect: float,
    at_most: int | None = None,
) -> Iterator[str]:
    """Yield what the study can see, and how many seeds and hours an effect (in nats) needs."""
    if not 0 < effect < math.inf:
        raise ValueError(f"--effect {effect:g}: must be above 0")
    compared, where = _records_like(study, members, like)
    systems = [one for one in compared.systems if not comparison.is_wild(one, compared.metric)]
    wild = [one.name for one in compared.systems if one not in systems]
    if not (deviation := comparison.pooled_deviation(systems, compared.metric)):
        few = f"no system has two records in {where}, so nobody knows how much seeds differ"
        if wild:
            few = f"the seeds of all systems in {where} deviate as where some failed to train"
        raise ValueError(f"--effect: {few}; {LIKE}")
    if wild:
        said = "Left out, since seeds deviate as where some failed to train"
        yield f"{said}: {', '.join(wild)}."
    metric = metric_named(compared.metric)
    unit = "nats" if to_nats(metric.name) else metric.title
    seeds = seeds_of(one.name for one in members)
    tested, most = max(1, len(seeds) - 1), min(map(len, seeds.values()))
    now = min(at_most or most, most)
    looks = None if now == most else (now, most)
    alpha = PlannedTest(study.settings.test, looks).level(0.05 / tested)
    count = sum(len(one.values(metric.name)) > 1 for one in systems)
    pooled = f"pooled over {count} system{'' if count == 1 else 's'} of {where}"
    yield f"Seeds deviate by {deviation:.2g} {unit}, {pooled}."
    strict = "" if tested == 1 else f", adjusted for {tested} systems"
    strict += f", at each look from {now} to {most} seeds" if looks else ""
    if now > 1:
        least = f"{deviation * smallest_effect(now, alpha):.2g} {unit}"
        found = f"a true difference of {least} in 80 % of studies{strict}"
        yield f"{now} seeds of each would find {found}."
    needed = seeds_needed(effect / deviation, alpha)
    if needed > MOST_SEEDS:
        yield f"{effect:g} {unit} need more than {MOST_SEEDS:,} seeds of each."
        return
    runs = needed * len(seeds)
    seconds = [s for one in systems if (s := one.cost("wall_seconds")) is not None]
    hours = f", {runs * mean(seconds) / 3600:.1f} hours of training" if seconds else ""
    yield f"{effect:g} {unit} need {needed} seeds of each: {runs} runs{hours}."


def _records_like(
    study: Study, members: Sequence[PreparedMember], like: Path | None
) -> tuple[comparison.Compared, str]:
    """Return the records that tell how much seeds deviate, and whose they are."""
    if like is None:
        where = "the finished members of this study"
        finished = [one for one in members if one.problem() is None]
        runs = read_runs([one.record for one in finished], [one.system for one in finished])
    elif like.is_dir():
        where = str(like)
        runs = read_runs(sorted([*like.glob("*-[0-9]*.json"), *like.glob(f"*/{RESULTS}")]))
    else:
        raise ValueError(f"--like {like}: no such folder; give one with the records of a study")
    if not runs:
        raise ValueError(f"--effect: there are no records in {where}; {LIKE}")
    return comparison.compare_runs(runs, study.settings.metric, columns=[]), where


def register(
    study: Study,
    members: Sequence[PreparedMember],
    trials: Sequence[PreparedMember],
    folder: Path,
    effect: float | None,
    at_most: int | None,
) -> str:
    """Write the plan before the first run, with the key of each member; return its digest."""
    file = folder / FILE
    if file.exists():
        raise ValueError(f"{file}: this study has a plan already, which its table will be held to")
    if done := [one.name for one in [*members, *trials] if one.is_done()]:
        raise ValueError(f"--register: {done[0]} has been run; a plan is made before the first run")
    if most_seeds(members) < 2:
        raise ValueError(f"{study.file}: --register: one seed of each system; list two or more")
    for name in ("metric", "baseline"):
        if getattr(study.settings, name) is None:
            raise ValueError(f"{study.file}: --register: no {name}, which a plan states; add it")
    plan = dict(new_plan(study, members, at_most)) | {"effect": effect}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, plan | {"sha256": _digest(plan)})
    return _digest(plan)


def new_plan(study: Study, members: Sequence[PreparedMember], at_most: int | None) -> StudyPlan:
    """Return the plan of a study with all that it lists; seeds beyond `at_most` may be added."""
    listed = most_seeds(members)
    return {
        "seeds": min(at_most or listed, listed),
        "most": listed,
        **_settings(study),
        "keys": {member.name: member.plan_key for member in members},
    }


def plan_notes(of: Standing) -> Iterator[str]:
    """Yield whether a study is as planned: seeds beyond it, and what changed since."""
    if (plan := of.plan) is None:
        return
    if of.is_beyond:
        yield f"Beyond the plan: it had {plan['most']} seeds of each system at most."
    now, digest = _settings(of.study), plan.get("sha256")
    changed = [name for name in now if (plan.get(name) or None) != (now[name] or None)]
    if changed := [*changed, *_changed_members(of, plan)]:
        since = f"{digest[:12]} was registered" if digest else "of the first look"
        yield f"Changed since the plan {since}: {', '.join(changed)}."
    elif digest and not of.is_beyond:
        yield f"As registered, plan {digest[:12]}."


def _changed_members(of: Standing, plan: StudyPlan) -> Iterator[str]:
    """Yield members with another key, and those that came or left."""
    now, keys = {one.name: one.plan_key for one in of.members}, plan["keys"]
    yield from (name for name, key in keys.items() if now.get(name, key) != key)
    yield from (f"{name} is new" for name in now if name not in of.due)
    yield from (f"{name} is missing" for name in keys if name in of.due - now.keys())


def seeds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the seeds of each system in names SYSTEM-SEED, in their order."""
    found: dict[str, list[str]] = {}
    for name in names:
        system, _, seed = name.rpartition("-")
        found.setdefault(system, []).append(seed)
    return found


def _settings(study: Study) -> dict[str, Any]:
    first = study.file.read_text(encoding="utf-8").lstrip().partition("\n")[0]
    names = {"metric", "baseline", "test", "rates", "rates_set"}
    question = {"question": first.lstrip("# ") if first.startswith("#") else ""}
    return question | study.settings.model_dump(include=names)


def _digest(plan: StudyPlan) -> str:
    said = {name: value for name, value in plan.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def members_table(members: Sequence[PreparedMember]) -> Table:
    """Return the members with what the finished ones took, in hours of training and bytes."""
    rows = []
    for member in members:
        hours, space = _hours(member), "–"
        if member.is_done():
            space = f"{bytes_in(member.run_dir) / 1e6:,.0f}"
        state = "done" if member.is_done() else "to run"
        spent = "–" if hours is None else f"{hours:.2f}"
        rows.append([Cell(text) for text in (member.name, state, spent, space, member.key)])
    return Table("", ["member", "state", "hours", "disk, MB", "key"], rows)


def _hours(member: PreparedMember) -> float | None:
    """Return the hours of training of a finished member; None if its record does not say."""
    record = load_record(member.record, finite=False) if member.is_done() else {}
    seconds = record.get("train", {}).get("wall_seconds")
    return None if seconds is None else seconds / 3600


def cost_of(members: Sequence[PreparedMember], slots: int) -> str:
    """Return hours and disk of the members to run; refuse a disk that is too small."""
    known = {one.system: hours for one in members if (hours := _hours(one)) is not None}
    waiting = [member.system for member in members if not member.is_done()]
    left = f"{sum(known.get(system, 0) for system in waiting) / slots:.1f} h of training"
    if unknown := sorted({*waiting} - {*known}):
        left = (
            f"unknown hours, since no finished member of {', '.join(unknown)} has them (`highrank "
            "bench estimate FILE` estimates a translator's)"
        )
    needed = bytes_needed(members)
    require_space(members[0].run_dir, needed)
    left += f", {size(needed)}" if needed else ""
    return f"{len(waiting)} of {len(members)} members to run, {slots} at a time: {left}"
