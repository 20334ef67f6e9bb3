"""Write the table of a study, which depends only on the members' numbers, and hold it to its looks.

A table with tests has spent all of alpha. With seeds that neither a plan nor the first table had,
any later test finds differences too often. So the first whole table keeps the seeds of each system,
by its configuration without the seed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import write_json, write_text
from highrank_plugins.reports.comparisons import comparison_tables
from highrank_plugins.reports.tables import Cell, Table, brief, to_csv, to_markdown
from highrank_plugins.results.comparison import compare_records
from highrank_plugins.results.record import RESULTS
from highrank_plugins.studies import plan as plans
from highrank_plugins.studies.definition import Study
from highrank_plugins.studies.members import DIVERGED, MEMBERS, NOT_RUN, UNFAIR, PreparedMember
from highrank_plugins.studies.plan import Standing, StudyPlan, read_mapping
from highrank_plugins.studies.rates import rate_notes

LOOKS = "looks.json"  # digest of a system → its seeds in the first whole table
UNREADABLE = "damaged; run the study with --table to write it"
UNTESTED = "untested.json"  # system → why the last table has no test of it
LATE = "members were added, left out or changed, which was not planned before a look"
ELSEWHERE = "seeds may be added to their study, whose own table (`highrank study`) has tests"


def write_tables(
    study: Study,
    members: Sequence[PreparedMember],
    folder: Path,
    plan: StudyPlan | None = None,
    all_tests: bool = False,
    compared: Callable[[Standing, list[Path], list[str]], list[Table]] | None = None,
) -> list[Table]:
    """Write table.md and table.csv into the folder of a study, and links to its members.

    `highrank compare` of the links learns from untested.json which systems have no test, and why.
    `plan` is what the study is held to, see `planned`; table.csv always has `all_tests`.
    `compared` makes other tables of the records, which begin with notes on plan and failures.
    """
    of = Standing(study, members, folder, plan)
    failed = [one for one in members if one.name in of.problems]
    notes = [f"{one.name}: {of.problems[one.name]}{_log(one, folder)}." for one in failed]
    notes += plans.plan_notes(of)
    records = _link([one for one in members if one.name not in of.problems], folder)
    whole = (compared or _compare)(of, records, notes) if records else no_records(of, notes)
    tables = whole if all_tests else brief(whole)
    write_text(folder / "table.md", to_markdown(tables))
    write_text(folder / "table.csv", to_csv(whole))
    return tables


def _compare(of: Standing, records: list[Path], notes: list[str]) -> list[Table]:
    """Compare all members that are done; the others are named with their problems."""
    named, reasons = of.study.settings.baseline, untested(of)
    is_lost = named is not None and all(one.name in of.problems for one in of.systems[named])
    if is_lost:
        reasons = dict.fromkeys(of.systems, f"the baseline {named} has no result")
    baseline, metric = None if is_lost else named, of.study.settings.metric
    compared = compare_records(records, metric, baseline, of.test, untested=reasons)
    if is_lost:
        own = [note for note in compared.notes if not note.startswith("Nothing is tested")]
        said = f"Nothing is tested, since the baseline {named} has no result."
        compared = replace(compared, baseline=None, notes=[said, *own])  # nor is it softmax
    keep_look(of, reasons)
    notes = [*compared.notes, *notes, *rate_notes(of.study.rates, "lr")]
    return comparison_tables(replace(compared, notes=notes), timed=False)


def no_records(of: Standing, notes: Sequence[str]) -> list[Table]:
    """Return the table of a study of which too few members are done."""
    rows = [[Cell(one.name), Cell("no record" if one.problem() else "done")] for one in of.members]
    return [Table(of.study.name, ["member", "result"], rows, notes)]


def _log(member: PreparedMember, folder: Path) -> str:
    """Name a member's log; that of the training if another study ran it."""
    names = ("train/train.log", "train/logs/rank0.log")
    logs = [folder / "logs" / f"{member.name}.log", *(member.run_dir / name for name in names)]
    return next((f"; log: {os.path.relpath(log, folder)}" for log in logs if log.is_file()), "")


def _link(members: Sequence[PreparedMember], folder: Path) -> list[Path]:
    """Link to the folders of members by name, remove other links to members; return the records."""
    targets = {member.name: os.path.relpath(member.run_dir, folder) for member in members}
    for link in [path for path in folder.iterdir() if path.is_symlink()]:
        target = os.readlink(link)
        if target != targets.get(link.name) and Path(target).parent.name == MEMBERS:
            link.unlink()
    for name, target in targets.items():
        link = folder / name
        if not os.path.lexists(link):
            link.symlink_to(target)
        elif not link.is_symlink() or os.readlink(link) != target:
            raise ValueError(f"{link}: in the place of the link to a member; move it away")
    return [folder / member.name / member.record.name for member in members]


def untested(of: Standing, arms: Mapping[str, str] = {}) -> dict[str, str]:
    """Return why systems have no test: seeds that wait or failed, or looks at other members.

    A system of `arms` is held to all sizes of its arm.
    """
    if why := _waiting(of):
        return dict.fromkeys(of.systems, why)
    looks, now, found = _looks(of.folder), _groups(of, arms), dict[str, str]()
    for system, own in of.systems.items():
        key = own[0].system_key
        kinds = [of.problems[one.name] for one in own if one.name in of.problems]
        if not of.due.issuperset(one.name for one in own) or looks.get(
            key, now.get(key)
        ) != now.get(key):
            found[system] = LATE
        elif kinds:
            found[system] = UNFAIR if DIVERGED in kinds else "a seed has no result"
    return found


def keep_look(of: Standing, reasons: Mapping[str, str], arms: Mapping[str, str] = {}) -> None:
    """Keep what a table has no test of and, of a whole one without a plan, its members."""
    seen = dict.fromkeys(of.systems, ELSEWHERE) if of.may_grow else {}
    write_json(of.folder / UNTESTED, seen | dict(reasons))
    if of.plan is None and NOT_RUN not in of.problems.values():
        write_json(of.folder / LOOKS, _groups(of, arms) | _looks(of.folder))


def _groups(of: Standing, arms: Mapping[str, str]) -> dict[str, dict[str, list[Any]]]:
    """Return seeds, and all sizes of the arm, of each configuration with several seeds."""
    found, sizes = dict[str, dict[str, list[Any]]](), dict[str, list[str]]()
    for name, own in of.systems.items():
        key, arm = own[0].system_key, sizes.setdefault(arms.get(name, name), [])
        arm.append(key)
        seeds = found.setdefault(key, {"seeds": [], "sizes": arm})["seeds"]
        seeds.append(sorted(str(one.seed) for one in own))
        seeds.sort()
    return {key: of for key, of in found.items() if sum(map(len, of["seeds"])) > 1}


def held_by_studies(records: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    """Return why systems have no test outside of their studies, and notes on missing records."""
    reasons, notes = dict[str, str](), list[str]()
    runs = [path.absolute().parent for path in records if path.name == RESULTS]
    own = [(run.parent, run.name.rpartition("-")[0]) for run in runs]
    for folder in dict.fromkeys(folder for folder, _ in own):
        given = {system for at, system in own if at == folder}
        there = {path.parent.name.rpartition("-")[0] for path in folder.glob(f"*/{RESULTS}")}
        file = folder / UNTESTED
        held = read_mapping(file, str, UNREADABLE) if file.exists() else {}
        reasons |= {system: why for system, why in held.items() if system in given}
        notes += [
            f"{name} has no record: {why}." for name, why in held.items() if name not in there
        ]
    return reasons, notes


def _waiting(of: Standing) -> str | None:
    """Return why a look is not whole; to diverge is a result."""
    plan, problems = of.plan, of.problems.values()
    if plan is None:
        return "not all seeds are done" if NOT_RUN in problems else None
    first, planned = plan["seeds"], of.planned
    few = any(len(own) < min(len(planned.get(name, ())), first) for name, own in of.systems.items())
    lost = any(problem != DIVERGED for problem in problems)
    if lost or few or plans.most_seeds(of.members) < first:
        return f"not all of the planned seeds ({first} of each system or more) are done"
    return None


def _looks(folder: Path) -> dict[str, Any]:
    return read_mapping(folder / LOOKS, dict) if (folder / LOOKS).exists() else {}
