"""`highrank analyse …`: the papers' measures of a checkpoint, of runs, of layers."""

from collections.abc import Callable

import typer

from highrank_plugins.cli.analyse.grid import gss_grid
from highrank_plugins.cli.analyse.layers import components, retention, spectrum
from highrank_plugins.cli.analyse.predictions import kld, predictions
from highrank_plugins.cli.analyse.significance import bleu, correlation, ttest
from highrank_plugins.cli.analyse.spectra import spectra
from highrank_plugins.cli.analyse.synthetic import dirichlet, multimode
from highrank_plugins.cli.analyse.words import saturation, unargmaxable, word_similarity

analyse = typer.Typer(no_args_is_help=True, help="The papers' measures, as JSON and as plots.")

COMMANDS: dict[str, Callable[..., None]] = {
    "spectrum": spectrum,
    "spectra": spectra,
    "kld": kld,
    "predictions": predictions,
    "components": components,
    "retention": retention,
    "word-similarity": word_similarity,
    "unargmaxable": unargmaxable,
    "saturation": saturation,
    "ttest": ttest,
    "correlation": correlation,
    "bleu": bleu,
    "gss-grid": gss_grid,
    "dirichlet": dirichlet,
    "multimode": multimode,
}
for _name, _function in COMMANDS.items():
    analyse.command(_name)(_function)
