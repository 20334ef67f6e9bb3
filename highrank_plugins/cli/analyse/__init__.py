"""Provide `highrank analyse …`: the papers' measures of a checkpoint, of runs, of layers."""

from highrank_plugins.cli import make_group
from highrank_plugins.cli.analyse.checkpoint import card, collect
from highrank_plugins.cli.analyse.measures import commands
from highrank_plugins.cli.analyse.several_models import bleu, disagreements, spectra

analyse = make_group(
    {
        "card": card,
        **dict(commands()),
        "collect": collect,
        "spectra": spectra,
        "bleu": bleu,
    },
    {"disagreements": disagreements},
)
