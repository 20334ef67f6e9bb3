"""`highrank recipes`."""

from pathlib import Path

import typer

import highrank_plugins
from highrank_plugins.cli.user_error import user_errors


def recipes() -> None:
    """Print all recipes, what each trains, and its configurations, as a Markdown table."""
    from highrank_plugins.common.markdown import table

    folder = Path(highrank_plugins.__file__).parents[1] / "recipes"
    with user_errors():
        scripts = sorted(folder.glob("*/run.sh"))
        if not scripts:
            raise ValueError(
                f"{folder}: there are no recipes: they come with a clone of the repository"
            )
        rows = [
            [f"`{_name(script)}`", _subject(script), _confs(script.parent)] for script in scripts
        ]
        typer.echo(table(["recipe", "trains", "configurations (--conf)"], rows), nl=False)


def _name(script: Path) -> str:
    return f"recipes/{script.parent.name}/run.sh"


def _subject(script: Path) -> str:
    """Return the first sentence of a script's header."""
    _, *lines = script.read_text(encoding="utf-8").splitlines()
    return lines[0].removeprefix("#").strip()


def _confs(recipe: Path) -> str:
    """Return what --conf takes, but for the configurations that others begin with."""
    conf = recipe / "conf"
    folders: dict[str, list[str]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        if path.stem != "base":
            folders.setdefault(str(path.parent.relative_to(conf)), []).append(path.stem)
    return " ".join(
        f"{'' if folder == '.' else f'{folder}/'}{{{','.join(names)}}}"
        for folder, names in folders.items()
    )
