"""Match the sizes of a recipe's configuration to another one, and write them."""

import os
from pathlib import Path

import yaml

from highrank_plugins.common.yaml_tree import ConfigurationError
from highrank_plugins.data.corpora.word_corpora import PTB, WIKITEXT2
from highrank_plugins.training import configuration
from highrank_plugins.training.configuration import Configuration
from highrank_plugins.training.matching import By, Match, invented_data, solve

_TYPES = {"ptb": PTB.types, "wikitext2": WIKITEXT2.types}
_SPECIAL_WORDS = 4


def find_configuration(recipe: Path, name: str) -> Path:
    """Return a file, or conf/NAME.yaml or conf/small/NAME.yaml of a recipe."""
    given = Path(name)
    if given.suffix == ".yaml" and given.is_file():
        return given
    whole = recipe / "conf" / f"{name}.yaml"
    small = recipe / "conf" / "small" / f"{name}.yaml"
    if not whole.is_file() and small.is_file():
        return small
    if not whole.is_file():
        configuration.load_tree(whole, [])  # its message lists the available names
    return whole


def shared_dictionary_size(recipe: str, system: Configuration, reference: Configuration) -> int:
    """Return how many entries the dictionary of two configurations will have."""
    sizes = [_dictionary_size(recipe, settings) for settings in (system, reference)]
    if sizes[0] != sizes[1]:
        raise ConfigurationError(
            f"the dictionaries differ: {sizes[0]:,} words, and {sizes[1]:,} in the model to match; "
            "choose configurations of one text, or give --words (`words` in a study)"
        )
    return sizes[0]


def _dictionary_size(recipe: str, settings: Configuration) -> int:
    corpus = settings.corpus or {}
    if "vocab_size" in corpus:
        return int(corpus["vocab_size"]) + _SPECIAL_WORDS
    if settings.data is not None:
        return settings.data.vocab_size
    if recipe not in _TYPES:
        raise ConfigurationError(
            f"{recipe}: the configuration does not state the number of words; give --words, or "
            "--data with the binarised text, to highrank match, or `words` in `match` of a study"
        )
    return _TYPES[recipe]


def match_configurations(
    system: Configuration,
    reference: Configuration,
    by: By,
    *,
    words: int,
    data: Path | None = None,
    free: tuple[str, ...] = (),
    step: int = 4,
) -> Match:
    """Return the sizes at which `system` costs as much as `reference`, see `matching.solve`.

    Args:
        words: entries of the dictionary, unless `data` has one.
    """
    options, target = system.options("train"), reference.options("train")
    if data is not None:
        return solve(options, target, by, data, free, step)
    with invented_data(options, words) as folder:
        return solve(options, target, by, folder, free, step)


def matched_yaml(base: Path, match: Match, by: By, title: str, folder: Path) -> str:
    """Return a configuration in `folder` with the sizes of a match over those of `base`."""
    size, target = match.size, match.target
    lines = [
        f"# {title}: {size.parameters:,} parameters and {size.compute:,} operations per token;",
        f"# matched by {by} to a model with {target.parameters:,} and {target.compute:,}.",
    ]
    tree = {"base": os.path.relpath(base, folder), "train": match.options}
    return "\n".join(lines) + "\n" + yaml.safe_dump(tree, sort_keys=False)
