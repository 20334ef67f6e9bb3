"""Write the table of a study, which depends only on the members' numbers."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.reports.comparisons import comparison_tables
from highrank_plugins.reports.tables import Cell, Table, to_csv, to_markdown
from highrank_plugins.results.comparison import compare_records
from highrank_plugins.results.record import PROBLEMS
from highrank_plugins.studies.definition import Study
from highrank_plugins.studies.looks import changed_settings, keep_look, untested
from highrank_plugins.studies.members import MEMBERS, PreparedMember
from highrank_plugins.studies.plan import StudyPlan, plan_notes, test_of
from highrank_plugins.studies.rates import rate_notes


def write_tables(
    study: Study,
    members: Sequence[PreparedMember],
    folder: Path,
    plan: StudyPlan | None = None,
    all_tests: bool = False,
    compared: Callable[..., tuple[list[Table], list[Table]]] | None = None,
) -> list[Table]:
    """Write table.md and table.csv into the folder of a study, and links to its members.

    `highrank compare` of the links learns from problems.json which members have no record, and
    from untested.json which systems have no test.
    `plan` is what the study is held to, see `planned`; table.csv always has `all_tests`.
    `compared` makes other tables.
    """
    problems = {member.name: problem for member in members if (problem := member.problem())}
    short, whole = (compared or _compare)(study, members, problems, folder, plan)
    tables = whole if all_tests else short
    write_text(folder / "table.md", to_markdown(tables))
    write_text(folder / "table.csv", to_csv(whole))
    write_text(folder / PROBLEMS, json.dumps(problems, indent=1) + "\n")
    return tables


def _compare(
    study: Study,
    members: Sequence[PreparedMember],
    problems: Mapping[str, str],
    folder: Path,
    plan: StudyPlan | None,
) -> tuple[list[Table], list[Table]]:
    """Compare all members that are done; the others are named with their problems.

    Returns the tables twice: without effects and p-values, and with them.
    """
    usable, notes = link_done(members, problems, folder)
    if not usable:
        empty = no_records(study, members, notes)
        return empty, empty
    found = [member for member in members if member.name not in problems]
    settings = study.settings
    baseline, why = settings.baseline, "no baseline is named"
    if baseline is not None and baseline not in {one.member.system for one in found}:
        why = f"the baseline {baseline} has no result"
        baseline = None
    reasons = untested(members, problems, folder, plan)
    notes += plan_notes(study, members, plan) if plan is not None else ()
    notes += rate_notes(study.rates, "lr")
    test = test_of(study, plan)
    compared = compare_records(usable, settings.metric, baseline, test, untested=reasons)
    looked = {"metric": compared.metric, "baseline": compared.baseline, "test": settings.test}
    keep_look(members, problems, folder, plan, reasons, looked)
    notes += changed_settings(members, folder, looked)
    if compared.baseline is None:  # drops a note about an option of `highrank compare`
        own = [note for note in compared.notes if not note.startswith("Nothing is tested")]
        compared = replace(compared, notes=[f"Nothing is tested, because {why}.", *own])
    compared = replace(compared, notes=[*compared.notes, *notes])
    short, whole = (comparison_tables(compared, False, all_tests=every) for every in (False, True))
    return short, whole


def link_done(
    members: Sequence[PreparedMember], problems: Mapping[str, str], folder: Path
) -> tuple[list[Path], list[str]]:
    """Link to the members that are done; return their records, and a note on each other one."""
    notes = [
        f"{member.name}: {problems[member.name]}{_log(member, folder)}."
        for member in members
        if member.name in problems
    ]
    return _link([one for one in members if one.name not in problems], folder), notes


def no_records(
    study: Study, members: Sequence[PreparedMember], notes: Sequence[str]
) -> list[Table]:
    """Return the table of a study of which too few members are done."""
    rows = [[Cell(m.name), Cell("no record" if m.problem() else "done")] for m in members]
    return [Table(study.name, ["member", "result"], rows, notes)]


def _log(member: PreparedMember, folder: Path) -> str:
    """Name a member's log, seen from the study's folder; the training's if another study ran it."""
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
