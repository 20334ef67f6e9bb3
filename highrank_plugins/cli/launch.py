"""Provide `highrank launch`, which trains on several processes."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.common.files import write_text
from highrank_plugins.common.folders import held_alone
from highrank_plugins.training.blocks import LaunchSettings
from highrank_plugins.training.fairseq_options import check_command
from highrank_plugins.training.launch import batch_job, plan, supervise
from highrank_plugins.training.launch.torchrun import describe


def launch(
    command: Annotated[list[str], "After --: fairseq-train and its options."],
    settings: LaunchSettings,
) -> None:
    """Train on several processes, GPUs or nodes.

    Example: highrank launch --gpus-per-node 8 -- fairseq-train data-bin

    SIGTERM or SIGUSR1 saves a checkpoint and ends with exit code 75; the same command resumes from
    it. Run the same command on every node. See docs/howto/clusters.md.
    """
    if settings.slurm is not None:
        _check_slurm(settings)
    elif not settings.dry_run:
        plan.refuse_missing(command)
    nodes, restarts = settings.nodes, settings.max_restarts
    gpus, per_node = devices(settings)
    log_dir = settings.log_dir or plan.save_dir(command) / "logs"
    made = plan.Plan(
        _complete(command, settings, nodes * per_node), log_dir, nodes, per_node, gpus,
        settings.rendezvous, settings.rendezvous_timeout,
        (3 if nodes > 1 else 0) if restarts is None else restarts, settings.stall_timeout,
    )  # fmt: skip
    if settings.dry_run:
        check_command(command)
    if settings.slurm is not None:
        _slurm(made, settings, settings.slurm)
    elif settings.submit or settings.sbatch or settings.prologue or _directives(settings):
        raise ValueError(
            "--submit, --sbatch, --account, --qos, --mem and --prologue need --slurm FILE"
        )
    elif settings.dry_run:
        typer.echo(describe(made))
    else:
        raise typer.Exit(supervise.launch(made, _say))


def _say(line: str) -> None:
    typer.echo(f"highrank: {line}", err=True)


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
    tokens, streams = settings.effective_tokens, settings.effective_streams
    if tokens is not None and streams is not None:
        raise ValueError("--effective-tokens and --effective-streams exclude each other")
    if tokens is not None:
        command, line = plan.with_effective_batch(command, tokens, world_size)
    elif streams is not None:
        command, line = plan.with_effective_streams(command, streams, world_size)
    else:
        return tuple(command)
    _say(line)
    return tuple(command)


def _directives(settings: LaunchSettings) -> list[str]:
    """Return the options of sbatch that have a name here."""
    own = {"account": settings.account, "qos": settings.qos, "mem": settings.mem}
    return [f"--{name}={value}" for name, value in own.items() if value is not None]


def _slurm(made: plan.Plan, settings: LaunchSettings, script: Path) -> None:
    directives = [*_directives(settings), *(settings.sbatch or ())]
    one_each, grace = settings.one_gpu_each, settings.grace
    job = batch_job.Job(script.stem, one_each, grace, directives, settings.prologue)
    batch_job.check_characters([str(script), *job.directives, *made.command])
    text = batch_job.sbatch_script(made, job)
    if settings.dry_run:
        typer.echo(text, nl=False)
    elif settings.submit:
        batch_job.require_slurm()
        busy = f"another highrank launch submits a job for {made.log_dir}: wait until it has ended"
        with held_alone(made.log_dir / ".submit", busy):
            typer.echo(batch_job.submit_once(made, job, script, text))
    else:
        made.log_dir.mkdir(parents=True, exist_ok=True)  # SLURM does not create it
        write_text(script, text)
        typer.echo(f"sbatch {script}")
