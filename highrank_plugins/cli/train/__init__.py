"""`highrank train …`: from a configuration to a training."""

from highrank_plugins.cli.group import make_group
from highrank_plugins.cli.train.configure import configure
from highrank_plugins.cli.train.run import run

train = make_group({"configure": configure}, {"run": run})
