"""Provide `highrank study`: configurations × seeds as one table that can be resumed."""

import logging
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.common.files import held_alone
from highrank_plugins.common.formatting import size
from highrank_plugins.common.processes import python

if TYPE_CHECKING:
    from highrank_plugins.studies.definition import Study
    from highrank_plugins.studies.prepared import PreparedMember


def study(
    file: Annotated[Path, "STUDY.yaml."],
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of the recipe, such as data=DIR; may be repeated.",
        ),
    ] = None,
    exp_dir: Annotated[Path, "Folder for runs and tables."] = Path("exp"),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Number of members to run at a time (default: cores or GPUs)."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print members, commands, hours and disk; train nothing."),
    ] = False,
    probe: Annotated[bool, "With --dry-run: measure 20 updates of each system."] = True,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Submit an array of jobs to SLURM, with a task per member."),
    ] = False,
    only: Annotated[str | None, "Run this member alone, and write no table."] = None,
    at_most: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Run the first N seeds of each system. The first N is the plan: tests wait for "
            "all of its seeds, and the table names seeds beyond it.",
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Run nothing; write the table of the finished members.")
    ] = False,
) -> None:
    """Run each member of a study once, and write one table.

    Example: highrank study recipes/ptb/studies/components.yaml --option data=ptb

    The same command resumes an interrupted study.
    """
    logging.disable(logging.INFO)  # hides fairseq's log
    with user_errors():
        from highrank_plugins.studies.definition import first_seeds, read_study
        from highrank_plugins.studies.prepared import (
            NOT_RUN,
            check_machine,
            planned,
            prepare,
            study_folder,
        )
        from highrank_plugins.studies.probe import probed_bytes
        from highrank_plugins.studies.runner import run_members, slots
        from highrank_plugins.training.launch.batch_job import check_characters

        given = {
            "--dry-run": dry_run,
            "--slurm": slurm,
            "--only": only is not None,
            "--table": table,
        }
        ways = [name for name, chosen in given.items() if chosen]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other; choose one")
        if not (probe or dry_run):
            raise ValueError("--no-probe: changes nothing without --dry-run; add --dry-run")
        exp_dir = exp_dir.resolve()
        read = read_study(file, _assignments(option or []))
        folder = study_folder(read, exp_dir)
        if slurm:
            check_characters([str(folder), *sys.argv])
        plan = planned(folder, None if dry_run else at_most)
        most = at_most or plan
        if most is not None:
            read = replace(read, members=first_seeds(read.members, most))
        members = prepare(read, exp_dir, check_values=dry_run)
        if not (slurm or dry_run or table):
            check_machine(members)
        if slurm:  # its nodes may have more cores
            claim(folder, file)
            _submit(read, members, folder, jobs)
            return
        environments = []
        if not table and (probe or not dry_run):
            environments = slots(read.settings.threads, 1 if only else jobs)
        if dry_run:
            _dry_run(read, members, exp_dir, environments)
            return
        claim(folder, file)
        if only is not None:
            names = [member.name for member in members]
            if only not in names:
                raise ValueError(
                    f"--only {only}: no such member; the members are {', '.join(names)}"
                )
            chosen = members[names.index(only)]
            run_members([chosen], folder / "logs", environments, _say)
            raise typer.Exit(1 if chosen.problem() else 0)
        busy = f"another process is running this study in {folder}; wait until it ends, or stop it"
        with held_alone(folder / ".lock", busy):
            if not table:
                known = probed_bytes(read, members, exp_dir)
                metric = read.settings.metric
                run_members(members, folder / "logs", environments, _say, metric, known)
            _show(read, members, folder, plan)
        failed = any(member.problem() not in (None, NOT_RUN) for member in members)
    raise typer.Exit(1 if failed else 0)


def _assignments(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--option {word}: expected KEY=VALUE")
        if found.setdefault(name.replace("-", "_"), value) != value:
            raise ValueError(f"--option {word}: {name} is given twice; give it once")
    return found


def _say(text: str) -> None:
    typer.echo(text, err=True)


def claim(folder: Path, file: Path) -> None:
    """Refuse the folder of another study that has the same name, and is still there."""
    with held_alone(folder / ".study") as owner:  # several members may be started at a time
        owner.seek(0)
        other = Path(owner.read().strip())
        if other.is_file() and not other.samefile(file):
            raise ValueError(
                f"{folder}: has the logs and tables of {other}; give {file} another name, or "
                "choose another --exp-dir"
            )
        if other != file.resolve():
            owner.truncate(0)
            owner.write(f"{file.resolve()}\n")


def _show(read: "Study", members: "list[PreparedMember]", folder: Path, plan: int | None) -> None:
    from highrank_plugins.reports.tables import to_markdown, to_terminal
    from highrank_plugins.studies.table import write_tables

    tables = write_tables(read, members, folder, plan)
    draw = to_terminal if sys.stdout.isatty() else to_markdown
    typer.echo(draw(tables), nl=False)
    _say(f"table: {folder / 'table.md'}, {folder / 'table.csv'}")


def _submit(read: "Study", members: "list[PreparedMember]", folder: Path, jobs: int | None) -> None:
    from highrank_plugins.studies.slurm_array import array_script, submit

    arguments = sys.argv[1:] if sys.argv[1:2] == ["study"] else ["study", str(read.file)]
    arguments = [word for word in arguments if word != "--slurm"]
    # tasks need not have the PATH of this environment
    command = python("-m", "highrank_plugins.cli", *arguments)
    typer.echo(submit(array_script(read, members, folder, command, jobs)))
    _say(f"after all tasks have ended, run: {shlex.join(['highrank', *arguments, '--table'])}")


def _dry_run(
    read: "Study", members: "list[PreparedMember]", exp_dir: Path, environments: list
) -> None:
    from highrank_plugins.reports.tables import FORMATS, Cell, Table
    from highrank_plugins.studies.disk import check_disk
    from highrank_plugins.studies.probe import MemberCost, estimate, total_hours

    found: dict[str, MemberCost] = {}
    problems = []
    for member in members:
        system = member.member.system
        if system not in found and environments:
            _say(f"{system}: measuring")
            try:
                found[system] = estimate(read, member, exp_dir, environments[0])
            except ValueError as error:
                problems.append(str(error))
                found[system] = MemberCost(None, 0)
    rows, hours = [], []
    for member in members:
        own = found.get(member.member.system, MemberCost(None, 0))
        state = "done" if member.is_done() else "to run"
        if not member.is_done():
            hours.append(own.hours)
        spent = "–" if own.hours is None else f"{own.hours:.2f}"
        space = f"{own.bytes / 1e6:,.0f}" if own.bytes else "–"
        rows.append([Cell(text) for text in (member.name, state, spent, space, member.key)])
    form = FORMATS["terminal" if sys.stdout.isatty() else "markdown"]
    typer.echo(form([Table("", ["member", "state", "hours", "disk, MB", "key"], rows)]))
    for member in members:
        typer.echo(f"# {member.name}\n{shlex.join(member.command)}")
    if not environments:
        return
    total = total_hours(hours, len(environments))
    left = "unknown hours" if total is None else f"{total:.1f} h"
    needed = sum(found[m.member.system].bytes for m in members if not m.is_done())
    typer.echo(
        f"\n{len(hours)} of {len(members)} members to run, {len(environments)} at a time: {left} "
        f"of training, {size(needed)}"
    )
    if problems:
        raise ValueError("\n".join(problems))
    check_disk(members, {system: own.bytes for system, own in found.items()})
