"""Provide `highrank launch`, which trains on several processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from highrank_plugins.training.launch.plan import Plan
    from highrank_plugins.training.launch.slurm import Job


def launch(
    command: Annotated[list[str], "After --: fairseq-train and its options."],
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="GPUs per node, one process each (default: all; without GPUs 1 CPU process).",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes per node, on CPU cores instead of GPUs.")
    ] = None,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address at which several nodes meet.")
    ] = None,
    rendezvous_timeout: Annotated[
        int,
        typer.Option(min=1, metavar="SECONDS", help="Time to wait until all processes have met."),
    ] = 300,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of restarts from the last checkpoint after a failure "
            "(default: 3 with several nodes, else 0).",
        ),
    ] = None,
    stall_timeout: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="End a training run that gives no sign of life for this long (0: never). "
            "While it starts or saves, the limit is ten times as long, and at least ten "
            "minutes.",
        ),
    ] = 600,
    effective_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per update over all processes: sets --update-freq."),
    ] = None,
    effective_streams: Annotated[
        int | None,
        typer.Option(
            min=1, help="Streams of a language model over all processes: sets --batch-size."
        ),
    ] = None,
    log_dir: Annotated[
        Path | None, "Folder for rank0.log, rank1.log, … (default: logs in --save-dir)."
    ] = None,
    slurm: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a script for sbatch, and start nothing."),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the script to sbatch.")] = False,
    sbatch: Annotated[
        list[str] | None, "Option for sbatch, such as --sbatch=--time=24:00:00; may be repeated."
    ] = None,
    one_gpu_each: Annotated[
        bool,
        typer.Option(
            "--one-gpu-each/--all-gpus-each",
            help="Under SLURM: each task sees one GPU of its node, or all.",
        ),
    ] = True,
    grace: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Under SLURM: stop and save this long before the time limit.",
        ),
    ] = 180,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print all commands, and start nothing.")
    ] = False,
) -> None:
    """Train on several processes, GPUs or nodes.

    Example: highrank launch --gpus-per-node 8 -- fairseq-train data-bin

    SIGTERM or SIGUSR1 saves a checkpoint and ends with exit code 75; the same command resumes from
    it. Run the same command on every node. See docs/howto/clusters.md.
    """
    from highrank_plugins.training.launch.flags import refuse_missing, save_dir
    from highrank_plugins.training.launch.plan import Plan
    from highrank_plugins.training.launch.slurm import Job

    if slurm is not None:
        _check_slurm(gpus_per_node, processes, rendezvous, max_restarts)
    elif not dry_run:
        refuse_missing(command)
    gpus, per_node = devices(gpus_per_node, processes)
    plan = Plan(
        _complete(command, effective_tokens, effective_streams, nodes * per_node),
        log_dir or save_dir(command) / "logs", nodes, per_node, gpus, rendezvous,
        rendezvous_timeout, _restarts(max_restarts, nodes), stall_timeout,
    )  # fmt: skip
    if slurm is not None:
        job = Job(slurm.stem, one_gpu_each, grace, sbatch or ())
        _slurm(plan, job, slurm, submit, dry_run)
        return
    if submit or sbatch:
        raise ValueError("--submit and --sbatch need --slurm FILE")
    raise typer.Exit(_run(plan, dry_run))


def _check_slurm(
    gpus_per_node: int | None,
    processes: int | None,
    rendezvous: str | None,
    max_restarts: int | None,
) -> None:
    """Check the options of a SLURM job: require what is unknown here, refuse what SLURM decides."""
    if gpus_per_node is None and processes is None:
        raise ValueError(
            "--slurm needs the size of a node: --gpus-per-node N (or --processes N on CPUs)"
        )
    if rendezvous is not None:
        raise ValueError("--rendezvous: SLURM tells its processes where to meet; remove it")
    if max_restarts is not None:
        raise ValueError("--max-restarts: a SLURM job ends when it loses a process; remove it")


def devices(gpus_per_node: int | None, processes: int | None) -> tuple[bool, int]:
    """Return whether to train on GPUs, and the number of processes per machine."""
    if gpus_per_node is not None and processes is not None:
        raise ValueError("--gpus-per-node and --processes (on a CPU) exclude each other")
    if processes is not None:
        return False, processes
    if gpus_per_node is not None:
        return True, gpus_per_node
    import torch

    count = torch.cuda.device_count()
    return (True, count) if count else (False, 1)


def _complete(
    command: list[str], tokens: int | None, streams: int | None, world_size: int
) -> tuple[str, ...]:
    from highrank_plugins.training.launch import flags

    if tokens is not None and streams is not None:
        raise ValueError("--effective-tokens and --effective-streams exclude each other")
    if tokens is not None:
        command, line = flags.with_effective_batch(command, tokens, world_size)
    elif streams is not None:
        command, line = flags.with_effective_streams(command, streams, world_size)
    else:
        return tuple(command)
    typer.echo(f"highrank: {line}", err=True)
    return tuple(command)


def _restarts(given: int | None, nodes: int) -> int:
    return (3 if nodes > 1 else 0) if given is None else given


def _slurm(plan: "Plan", job: "Job", script: Path, submit: bool, dry_run: bool) -> None:
    from highrank_plugins.common.files import write_text
    from highrank_plugins.common.folders import held_alone
    from highrank_plugins.training.launch.batch_job import check_characters
    from highrank_plugins.training.launch.slurm import sbatch_script, submit_once

    check_characters([str(script), *plan.command])
    text = sbatch_script(plan, job)
    if dry_run:
        typer.echo(text, nl=False)
    elif submit:
        busy = f"another highrank launch submits a job for {plan.log_dir}: wait until it has ended"
        with held_alone(plan.log_dir / ".submit", busy):
            typer.echo(submit_once(plan, job, script, text))
    else:
        plan.log_dir.mkdir(parents=True, exist_ok=True)  # SLURM does not create it
        write_text(script, text)
        typer.echo(f"sbatch {script}")


def _run(plan: "Plan", dry_run: bool) -> int:
    from highrank_plugins.training.launch.supervise import launch
    from highrank_plugins.training.launch.torchrun import describe

    if dry_run:
        typer.echo(describe(plan))
        return 0
    return launch(plan, lambda line: typer.echo(f"highrank: {line}", err=True))
