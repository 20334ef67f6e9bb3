"""`highrank analyse …`: the papers' measures of a checkpoint, of runs, of layers."""

from highrank_plugins.cli.analyse.card import card
from highrank_plugins.cli.analyse.collect import collect
from highrank_plugins.cli.analyse.grid import gss_grid
from highrank_plugins.cli.analyse.measures import commands
from highrank_plugins.cli.analyse.significance import bleu, correlation, ttest
from highrank_plugins.cli.analyse.spectra import spectra
from highrank_plugins.cli.analyse.synthetic import dirichlet, multimode
from highrank_plugins.cli.group import make_group

analyse = make_group(
    {
        "card": card,
        **dict(commands()),
        "collect": collect,
        "spectra": spectra,
        "ttest": ttest,
        "correlation": correlation,
        "bleu": bleu,
        "gss-grid": gss_grid,
        "dirichlet": dirichlet,
        "multimode": multimode,
    },
)
