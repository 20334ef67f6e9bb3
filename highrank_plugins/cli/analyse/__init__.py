"""`highrank analyse …`: the papers' measures of a checkpoint, of runs, of layers."""

from collections.abc import Callable

import typer

from highrank_plugins.cli.analyse.grid import gss_grid
from highrank_plugins.cli.analyse.measures import commands
from highrank_plugins.cli.analyse.significance import bleu, correlation, ttest
from highrank_plugins.cli.analyse.spectra import spectra
from highrank_plugins.cli.analyse.synthetic import dirichlet, multimode

analyse = typer.Typer(no_args_is_help=True, help="The papers' measures, as JSON and as plots.")

COMMANDS: dict[str, Callable[..., None]] = {
    **dict(commands()),
    "spectra": spectra,
    "ttest": ttest,
    "correlation": correlation,
    "bleu": bleu,
    "gss-grid": gss_grid,
    "dirichlet": dirichlet,
    "multimode": multimode,
}
for _name, _function in COMMANDS.items():
    analyse.command(_name)(_function)
