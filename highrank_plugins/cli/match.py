"""Provide `highrank match`: give a configuration the size of another one."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from highrank_plugins.cli.options import names
from highrank_plugins.cli.printing import print_or_write


def match(
    system: Annotated[str, "Configuration to change: a file, or a name in --recipe."],
    to: Annotated[str, typer.Option(help="Configuration to match.")],
    by: Annotated[
        Literal["parameters", "compute", "width"], "Quantity to make equal, within 0.5 %."
    ] = "parameters",
    recipe: Annotated[str, "Recipe that has the configurations."] = "ptb",
    words: Annotated[
        int | None,
        typer.Option(min=5, help="Size of the dictionary (default: the configuration's)."),
    ] = None,
    data: Annotated[Path | None, "Binarised text with the dictionary."] = None,
    free: Annotated[
        str | None, "Sizes to change in proportion, separated by commas (default: widths)."
    ] = None,
    step: Annotated[int, typer.Option(min=1, help="Round sizes to multiples of this.")] = 4,
    output: Annotated[Path | None, "Configuration to write (default, and -: print it)."] = None,
) -> None:
    """Find the sizes at which a system costs as much as another.

    Example: highrank match small/mos --to small/softmax --by parameters
    """
    logging.disable(logging.INFO)  # hides fairseq's log
    from highrank_plugins.studies.definition import recipe_folder
    from highrank_plugins.studies.members import (
        find_configuration,
        match_configurations,
        matched_yaml,
        shared_dictionary_size,
    )
    from highrank_plugins.training import configuration

    folder = recipe_folder(recipe, Path())
    base, target = (find_configuration(folder, name) for name in (system, to))
    settings, reference = configuration.load(base), configuration.load(target)
    count = words or (0 if data else shared_dictionary_size(folder.name, settings, reference))
    sizes = tuple(names("--free", free)) if free else ()
    found = match_configurations(
        settings, reference, by, words=count, data=data, free=sizes, step=step
    )
    place = Path() if output is None else output.parent  # of `-`, it is this directory, too
    text = matched_yaml(base, found, by, f"{system} of the size of {to}", place)
    print_or_write(text, output)
