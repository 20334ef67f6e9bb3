"""Provide `highrank study`, a table of configurations × seeds, and `ladder`, over sizes."""

import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.options import assignments, print_tables, refuse_idle
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.files import write_json
from highrank_plugins.common.folders import held
from highrank_plugins.common.processes import python
from highrank_plugins.data.own_text import check_recipe
from highrank_plugins.reports.plots import check_plot, draw
from highrank_plugins.reports.tables import Table
from highrank_plugins.studies import ladder_table, plan
from highrank_plugins.studies.definition import Study, first_seeds, read_study, script_options
from highrank_plugins.studies.ladder import check_tokens, read_ladder
from highrank_plugins.studies.members import NOT_RUN, PreparedMember, prepare, study_folder
from highrank_plugins.studies.rates import trials_of, tuned, untried
from highrank_plugins.studies.runner import array_script, check_machine, claim, run_members, slots
from highrank_plugins.studies.table import write_tables
from highrank_plugins.training.launch.batch_job import check_characters, submit

_say = partial(typer.echo, err=True)


class RunOptions(BlockOptions):
    """Say which members of a study or of a ladder run, and where."""

    exp_dir: Path = option(Path("exp"), "Folder for runs and tables.")
    jobs: int | None = option(None, "Members to run at a time (default: cores or GPUs).", ge=1)
    dry_run: bool = option(False, "Print members, commands, hours and disk; train nothing.")
    slurm: bool = option(False, "Submit an array of jobs to SLURM, with a task per member.")
    only: str | None = option(None, "Run this member alone, and write no table.")
    table: bool = option(False, "Run nothing; write the table of the finished members.")
    # last, since it hides the function
    option: list[str] | None = option(
        None, "Option of the recipe, such as data=DIR; may be repeated.", {"metavar": "KEY=VALUE"}
    )


class StudyOptions(RunOptions):
    """Say also what a study could find, and plan it."""

    at_most: int | None = option(None, "Run the first N seeds; tests allow for more.", ge=2)
    all_tests: bool = option(False, "Also show effects and p-values, as table.csv always does.")
    registered: bool = option(False, "Run nothing; write down the plan.", {"words": "--register"})
    effect: float | None = option(
        None, "Print seeds and hours for a difference (perplexity, bits: nats)."
    )
    like: Path | None = option(None, "Records of seeds for --effect (default: finished members).")


class LadderOptions(RunOptions):
    """Say also what the judgement of a file of points draws."""

    plot: Path | None = option(None, "Figure of the projections to write: .png, .svg or .pdf.")


def ladder(file: Annotated[Path, "LADDER.yaml."], options: LadderOptions) -> None:
    """Run the arms of a ladder at each size, and project their differences to a larger size.

    Example: highrank ladder recipes/own_language_model/ladder.yaml

    A file of points is judged at once. The same command resumes an interrupted ladder.
    """
    check_plot(options.plot)
    read = read_ladder(file, assignments(options.option or []))
    if read.study is not None:
        if options.plot is not None:
            raise ValueError("--plot: runs have ladder.svg beside their table; leave it out")
        run = StudyOptions(**options.model_dump(include={*RunOptions.model_fields}))
        compared = partial(ladder_table.ladder_tables, read)
        return _start(read.study, run, compared, partial(check_tokens, read))
    refuse_idle(options, {"plot", "exp_dir"}, "with a file of points")
    table, figures = ladder_table.judge(read, ladder_table.of_points(read))
    if options.plot is not None:
        draw(options.plot, *figures)
    print_tables([table])


def study(file: Annotated[Path, "STUDY.yaml."], options: StudyOptions) -> None:
    """Run each member of a study once, and write one table.

    Example: highrank study recipes/ptb/studies/components.yaml --option data=ptb

    The same command resumes an interrupted study.
    """
    if options.like is not None and options.effect is None:
        raise ValueError("--like: tells --effect how much seeds differ; give both")
    _start(read_study(file, assignments(options.option or [])), options)


def _start(
    read: Study,
    options: StudyOptions,
    compared: Callable[..., list[Table]] | None = None,
    check: Callable[[list[PreparedMember]], None] | None = None,
) -> None:
    """Do what the options ask for: plan, print, submit or run the members of a study.

    `compared` makes the table, and `check` refuses members.
    """
    _refuse_two_ways(options)
    options = options.model_copy(update={"exp_dir": options.exp_dir.resolve()})
    folder = study_folder(read, options.exp_dir)
    effect, only_plans = options.effect, options.registered or options.effect is not None
    read, planned, most = _held(read, options, folder, only_plans)
    if not (options.only or options.table):
        for line in check_recipe(script_options(read.recipe) | dict(read.options)):
            _say(line)
    members = prepare(read, options.exp_dir)
    if check is not None:
        check(members)
    trials = trials_of(read, options.exp_dir)
    if effect is not None:
        with_rates = (
            prepare(tuned(read, trials), options.exp_dir) if not untried(trials) else members
        )
        for line in plan.forecast(read, with_rates, options.like, effect, most):
            typer.echo(line)
    if options.registered:
        claim(folder, read.file)
        digest = plan.register(read, members, trials, folder, effect, most)
        typer.echo(f"plan {digest[:12]}: {folder / plan.FILE}")
    if only_plans:
        return
    if options.dry_run or options.slurm:
        _print_or_submit(read, trials, folder, options)
    else:
        claim(folder, read.file)
        every = options.all_tests
        write = partial(write_tables, plan=planned, all_tests=every, compared=compared)
        _run(read, trials, folder, options, write)


def _refuse_two_ways(options: StudyOptions) -> None:
    """Refuse two things to do in place of running all members, and options that these ignore."""
    given = {
        "--dry-run": options.dry_run, "--slurm": options.slurm, "--only": options.only,
        "--table": options.table, "--register": options.registered,
        "--effect": options.effect is not None,
    }  # fmt: skip
    ways = [way for way, wanted in given.items() if wanted]
    if len(ways) > 1 and ways != ["--register", "--effect"]:
        raise ValueError(f"{' and '.join(ways)} exclude each other; choose one")
    used = {*type(options).model_fields}
    if ways == ["--dry-run"]:
        used -= {"all_tests"}
    elif {"--register", "--effect"} & {*ways}:
        used = {"exp_dir", "option", "at_most", "effect", "like", "registered"}
    refuse_idle(options, used, f"with {''.join(ways[:1])}")


def _held(
    read: Study, options: StudyOptions, folder: Path, only_plans: bool
) -> tuple[Study, plan.StudyPlan | None, int | None]:
    """Return the study with the seeds of --at-most or its plan, the plan, and their number."""
    at_most, listed = options.at_most, plan.most_seeds(read.members)
    if at_most is not None and at_most > listed:
        raise ValueError(f"--at-most {at_most}: {read.file} lists {listed} seeds; list more")
    is_member = options.only in {None, *(one.name for one in read.members)}  # no trial, no typo
    planned = plan.planned(folder)
    if at_most and planned is None and is_member and not (options.dry_run or only_plans):
        planned = plan.new_plan(read, prepare(read, options.exp_dir), at_most)
        claim(folder, read.file)  # the plan is of this study, not of another with its name
        write_json(folder / plan.FILE, planned)
    most = at_most or (None if planned is None else int(planned["seeds"]))
    if most is None or only_plans:
        return read, planned, most
    if at_most is None and most < listed:
        _say(f"the plan has {most} of the {listed} seeds; --at-most {listed} takes all")
    return replace(read, members=first_seeds(read.members, most)), planned, most


def _print_or_submit(
    read: Study, trials: list[PreparedMember], folder: Path, options: StudyOptions
) -> None:
    """Print or submit the members; the trials of their rates come first, if any waits."""
    if waiting := untried(trials):
        members = trials
        _say(
            f"{len(waiting)} trials of learning rates come first; the same command then takes the "
            f"best rates for all {len(read.members)} members"
        )
    else:
        read = tuned(read, trials)
        members = prepare(read, options.exp_dir)
    if options.slurm:
        return _submit(read, members, folder, options.jobs)
    print_tables([plan.members_table(members)])
    for member in members:
        typer.echo(f"# {member.name}\n{shlex.join(member.command)}")
    prepare(read, options.exp_dir, check_values=True)
    typer.echo(f"\n{plan.cost_of(members, len(slots(read.settings.threads, options.jobs)))}")


def _run(
    read: Study,
    trials: list[PreparedMember],
    folder: Path,
    options: StudyOptions,
    write: Callable[..., list[Table]],
) -> None:
    """Run trials and members on this machine, or the only one asked for, and write the table."""
    only, table, exp_dir = options.only, options.table, options.exp_dir
    environments = [] if table else slots(read.settings.threads, 1 if only else options.jobs)
    if only is not None:
        known = [*trials]
        if not untried(trials):
            known += prepare(tuned(read, trials), exp_dir)
        chosen = next((one for one in known if one.name == only), None)
        if chosen is None:
            names = ", ".join(one.name for one in known)
            if only in {one.name for one in read.members}:
                raise ValueError(f"--only {only}: waits for the trials of rates: {names}")
            raise ValueError(f"--only {only}: no such member; the members are {names}")
        check_machine([one for one in known if one.seed == chosen.seed])
        run_members([chosen], folder / "logs", environments, _say)
        raise typer.Exit(1 if chosen.problem() else 0)
    # a running study keeps its lock, which a table so far does not need
    lock = held(folder / ".lock", f"folder {folder}", "run of this study")
    with nullcontext() if table else lock:
        if trials and not table:
            check_machine(trials)
            run_members(trials, folder / "logs", environments, _say)
        read = tuned(read, trials)
        members = prepare(read, exp_dir)
        if not table:
            check_machine([*trials, *members])  # nodes of SLURM may have more cores
            run_members(members, folder / "logs", environments, _say)
        tables = write(read, members, folder)
        _say(f"table: {folder / 'table.md'}, {folder / 'table.csv'}")
        print_tables(tables)  # its last line says what can be claimed
    failed = any(member.problem() not in (None, NOT_RUN) for member in members)
    raise typer.Exit(1 if failed else 0)


def _submit(read: Study, members: list[PreparedMember], folder: Path, jobs: int | None) -> None:
    check_characters([str(folder), *sys.argv])
    claim(folder, read.file)
    arguments = [word for word in sys.argv[1:] if word != "--slurm"]
    # tasks need not have the PATH of this environment
    command = python("-m", "highrank_plugins.cli", *arguments)
    script = array_script(read, members, folder, command, jobs)
    typer.echo(f"sbatch {script}: job {submit(script)}")
    _say(f"after all tasks have ended, run: {shlex.join(['highrank', *arguments, '--table'])}")
