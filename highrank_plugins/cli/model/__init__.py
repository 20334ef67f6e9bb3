"""`highrank model …`: checkpoints and model folders."""

from highrank_plugins.cli.group import make_group
from highrank_plugins.cli.model.average import average, best_checkpoint
from highrank_plugins.cli.model.export import export, import_model

model = make_group(
    {
        "average": average,
        "best-checkpoint": best_checkpoint,
        "export": export,
        "import": import_model,
    },
)
