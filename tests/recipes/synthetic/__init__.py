from click.testing import CliRunner, Result

from highrank_plugins.cli import as_command, make_group
from recipes.synthetic.__main__ import EXPERIMENTS


def experiment(*words: object) -> Result:
    """Run `python -m recipes.synthetic` in this process."""
    return CliRunner().invoke(as_command(make_group(EXPERIMENTS)), [str(word) for word in words])
