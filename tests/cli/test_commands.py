"""The commands of `highrank` are those of commands.tsv, each with a file that uses it.

A new command needs a user: a recipe, a script or a page. Hidden commands are for recipes.
"""

from pathlib import Path

import typer

from highrank_plugins.cli import HIDDEN, app

ROOT = Path(__file__).parents[2]
LISTED = [
    line.split("\t")
    for line in Path(__file__).with_name("commands.tsv").read_text(encoding="utf-8").splitlines()
]


def test_the_commands_are_those_of_the_list():
    root = typer.main.get_command(app)
    found = {}
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        for inner, one in getattr(command, "commands", {"": command}).items():
            is_hidden = one.hidden or name in HIDDEN
            found[f"{name} {inner}".strip()] = "hidden" if is_hidden else "visible"
    assert found == {name: kind for name, kind, _ in LISTED}


def test_each_command_has_a_user():
    unused = [
        f"{name}: {user}"
        for name, _, user in LISTED
        if user != "-" and f"highrank {name}" not in (ROOT / user).read_text(encoding="utf-8")
    ]
    assert unused == []
