"""`highrank train …`: from a configuration to a command line of fairseq-train."""

from highrank_plugins.cli.group import make_group
from highrank_plugins.cli.train.configure import command, configure, setting, training_space
from highrank_plugins.cli.train.progress import progress

train = make_group(
    {"configure": configure, "command": command},
    {"progress": progress, "setting": setting, "space": training_space},
)
