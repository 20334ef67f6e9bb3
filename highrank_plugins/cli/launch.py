"""Provide `highrank launch`, which trains on several processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highrank_plugins.training.blocks import LaunchSettings

if TYPE_CHECKING:
    from highrank_plugins.training.launch.plan import Plan


def launch(
    command: Annotated[list[str], "After --: fairseq-train and its options."],
    settings: LaunchSettings,
) -> None:
    """Train on several processes, GPUs or nodes.

    Example: highrank launch --gpus-per-node 8 -- fairseq-train data-bin

    SIGTERM or SIGUSR1 saves a checkpoint and ends with exit code 75; the same command resumes from
    it. Run the same command on every node. See docs/howto/clusters.md.
    """
    from highrank_plugins.training.fairseq_options import check_command
    from highrank_plugins.training.launch.plan import Plan, refuse_missing, save_dir
    from highrank_plugins.training.launch.supervise import launch as supervise
    from highrank_plugins.training.launch.torchrun import describe

    if settings.slurm is not None:
        _check_slurm(settings)
    elif not settings.dry_run:
        refuse_missing(command)
    nodes = settings.nodes
    gpus, per_node = devices(settings)
    restarts = settings.max_restarts
    plan = Plan(
        _complete(command, settings, nodes * per_node),
        settings.log_dir or save_dir(command) / "logs", nodes, per_node, gpus, settings.rendezvous,
        settings.rendezvous_timeout, (3 if nodes > 1 else 0) if restarts is None else restarts,
        settings.stall_timeout,
    )  # fmt: skip
    if settings.dry_run:
        check_command(command)
    if settings.slurm is not None:
        _slurm(plan, settings, settings.slurm)
    elif settings.submit or settings.sbatch or settings.prologue or _directives(settings):
        raise ValueError(
            "--submit, --sbatch, --account, --qos, --mem and --prologue need --slurm FILE"
        )
    elif settings.dry_run:
        typer.echo(describe(plan))
    else:
        raise typer.Exit(supervise(plan, lambda line: typer.echo(f"highrank: {line}", err=True)))


def _check_slurm(settings: LaunchSettings) -> None:
    """Check the options of a SLURM job: require what is unknown here, refuse what SLURM decides."""
    if settings.gpus_per_node is None and settings.processes is None:
        raise ValueError(
            "--slurm needs the size of a node: --gpus-per-node N (or --processes N on CPUs)"
        )
    if settings.rendezvous is not None:
        raise ValueError("--rendezvous: SLURM tells its processes where to meet; remove it")
    if settings.max_restarts is not None:
        raise ValueError("--max-restarts: a SLURM job ends when it loses a process; remove it")


def devices(settings: LaunchSettings) -> tuple[bool, int]:
    """Return whether to train on GPUs, and the number of processes per machine."""
    if settings.gpus_per_node is not None and settings.processes is not None:
        raise ValueError("--gpus-per-node and --processes (on a CPU) exclude each other")
    if settings.processes is not None:
        return False, settings.processes
    if settings.gpus_per_node is not None:
        return True, settings.gpus_per_node
    import torch

    count = torch.cuda.device_count()
    return (True, count) if count else (False, 1)


def _complete(command: list[str], settings: LaunchSettings, world_size: int) -> tuple[str, ...]:
    from highrank_plugins.training.launch import plan

    tokens, streams = settings.effective_tokens, settings.effective_streams
    if tokens is not None and streams is not None:
        raise ValueError("--effective-tokens and --effective-streams exclude each other")
    if tokens is not None:
        command, line = plan.with_effective_batch(command, tokens, world_size)
    elif streams is not None:
        command, line = plan.with_effective_streams(command, streams, world_size)
    else:
        return tuple(command)
    typer.echo(f"highrank: {line}", err=True)
    return tuple(command)


def _directives(settings: LaunchSettings) -> list[str]:
    """Return the options of sbatch that have a name here."""
    own = {"account": settings.account, "qos": settings.qos, "mem": settings.mem}
    return [f"--{name}={value}" for name, value in own.items() if value is not None]


def _slurm(plan: "Plan", settings: LaunchSettings, script: Path) -> None:
    from highrank_plugins.common.files import write_text
    from highrank_plugins.common.folders import held_alone
    from highrank_plugins.training.launch.batch_job import (
        Job,
        check_characters,
        require_slurm,
        sbatch_script,
        submit_once,
    )

    directives = [*_directives(settings), *(settings.sbatch or ())]
    job = Job(script.stem, settings.one_gpu_each, settings.grace, directives, settings.prologue)
    check_characters([str(script), *job.directives, *plan.command])
    text = sbatch_script(plan, job)
    if settings.dry_run:
        typer.echo(text, nl=False)
    elif settings.submit:
        require_slurm()
        busy = f"another highrank launch submits a job for {plan.log_dir}: wait until it has ended"
        with held_alone(plan.log_dir / ".submit", busy):
            typer.echo(submit_once(plan, job, script, text))
    else:
        plan.log_dir.mkdir(parents=True, exist_ok=True)  # SLURM does not create it
        write_text(script, text)
        typer.echo(f"sbatch {script}")
