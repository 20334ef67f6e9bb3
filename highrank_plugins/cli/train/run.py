"""`highrank train run`: the training of a recipe, from its command file."""

import logging
import resource
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def run(
    command: Annotated[Path, typer.Argument(help="File with the command of fairseq-train.")],
    config: Annotated[Path, typer.Option(help="Written by `highrank train configure`.")],
    block: Annotated[str, typer.Option(help="The block that is trained.")],
    data: Annotated[str, typer.Option(help="The binarised data.")],
    save_dir: Annotated[Path, typer.Option(help="The --save-dir, where train.log goes, too.")],
) -> None:
    """Check the disk space of a training, run it, log it, and show its progress in short lines."""
    from highrank_plugins.training.configuration import load
    from highrank_plugins.training.disk_space import check_space
    from highrank_plugins.training.training_log import digest, memory_line

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        options = load(config).options(block)
        check_space(options, data, save_dir)
    bounds = (float(options.get(name, 0)) or float("inf") for name in ("max_update", "max_epoch"))
    # the lock of the recipe's folder is inherited: a training that outlives the recipe keeps it
    with (
        (save_dir / "train.log").open("ab", buffering=0) as log,
        subprocess.Popen(
            ["bash", str(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,
        ) as training,
    ):
        assert training.stdout is not None
        for line in digest(_logged(training.stdout, log), *bounds):
            typer.echo(line)
        training.wait()
        kibibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        log.write(memory_line(kibibytes).encode())
    code = training.returncode
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)  # of a signal as bash has it


def _logged(lines: Iterable[bytes], log: IO[bytes]) -> Iterator[str]:
    for line in lines:
        log.write(line)
        yield line.decode(errors="replace")
