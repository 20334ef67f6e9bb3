"""Write the table of a study, which depends only on the members' numbers."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from highrank_plugins.common.files import read_json, write_text
from highrank_plugins.reports.comparison_tables import comparison_tables
from highrank_plugins.reports.tables import Cell, Table, to_csv, to_markdown
from highrank_plugins.results.comparison import compare_records
from highrank_plugins.studies.definition import Study
from highrank_plugins.studies.prepared import PreparedMember
from highrank_plugins.studies.runner import Failure


def write_tables(
    study: Study, members: Sequence[PreparedMember], failures: Sequence[Failure], folder: Path
) -> list[Table]:
    """Write table.md and table.csv into the folder of a study, and links to its members.

    Returns:
        The tables.
    Raises:
        ValueError: see `compare_records`.
    """
    tables = study_tables(study, members, failures, folder)
    write_text(folder / "table.md", to_markdown(tables))
    write_text(folder / "table.csv", to_csv(tables))
    return tables


def study_tables(
    study: Study, members: Sequence[PreparedMember], failures: Sequence[Failure], folder: Path
) -> list[Table]:
    """Return the comparison of all members that are done; others are named below it."""
    failed = {failure.member.name: failure for failure in failures}
    notes, usable = [], []
    for member in members:
        log = Path("logs") / f"{member.name}.log"
        if not member.is_done():
            what = failed[member.name].what if member.name in failed else "not run"
            notes.append(f"{member.name}: {what}; log: {log}.")
        elif _diverged(member.record):
            notes.append(f"{member.name}: diverged (NaN); log: {log}.")
        else:
            usable.append(_link(member, folder))
    if not usable:
        rows = [[Cell(member.name), Cell("no record")] for member in members]
        return [Table(study.name, ["member", "result"], rows, notes)]
    settings = study.settings
    baseline = settings.baseline
    if baseline is not None and baseline not in {_system(path) for path in usable}:
        notes.insert(0, f"The baseline {baseline} has no result.")
        baseline = None
    compared = compare_records(usable, settings.metric, baseline, settings.test)
    if compared.baseline is None:  # drops a note about an option of `highrank compare`
        own = [note for note in compared.notes if not note.startswith("Nothing is tested")]
        compared = replace(
            compared, notes=["Nothing is tested, because no baseline is named.", *own]
        )
    first, *others = comparison_tables(compared, timed=False)
    return [replace(first, notes=[*first.notes, *notes]), *others]


def _system(record: Path) -> str:
    return record.parent.name.rpartition("-")[0]


def _diverged(record: Path) -> bool:
    """Whether a metric of a record is NaN or infinite."""
    metrics = read_json(record)["metrics"]
    return not all(math.isfinite(value) for value in metrics.values())


def _link(member: PreparedMember, folder: Path) -> Path:
    """Return the record under the member's name: a link to the folder of its key."""
    link = folder / member.name
    target = os.path.relpath(member.run_dir, folder)
    if not link.is_symlink() or os.readlink(link) != target:
        link.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return link / member.record.name
