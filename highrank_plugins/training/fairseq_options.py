"""Check options by fairseq's own parser, with our models, before anything is computed."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import highrank_plugins
from highrank_plugins.common.blocks import ConfigurationError, Tree
from highrank_plugins.common.names import flag, option_name
from highrank_plugins.common.options import WrongNumbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.training.blocks import PROGRAMS
from highrank_plugins.training.command_line import user_dir, words_of
from highrank_plugins.training.configuration import Configuration
from highrank_plugins.training.model_size import on_meta, task_of


def check_options(configuration: Configuration, tree: Tree) -> None:
    """Check the options in the blocks of fairseq's commands; imports it (seconds)."""
    problems: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for tool in filter(partial(getattr, configuration), PARSERS):  # blocks that are not empty
        found[tool] = _problems(tool, configuration.options(tool))
        inherited = found.get("train", {}) if tool == "finetune" else {}
        problems += [
            f"{tree.place((tool, name))}: {tool}.{name}: {problem}"
            for name, problem in found[tool].items()
            if inherited.get(name) != problem
        ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def check_command(words: Sequence[str]) -> None:
    """Check the options of a command `fairseq-train …`, as it would; imports it (seconds)."""
    highrank_plugins.register()
    from fairseq import options

    parser = options.get_training_parser()
    parser.prog = words[0]
    _check_model(options.parse_args_and_arch(parser, list(words[1:])))


def _problems(tool: str, options: Mapping[str, object]) -> dict[str, str]:
    """Return what is wrong with options, by name, as the command would say it."""
    highrank_plugins.register()
    from fairseq import options as fairseq  # now with our checks

    parser = getattr(fairseq, PARSERS[tool])()
    parser.prog, parser.exit = PROGRAMS[tool].words, _refuse
    try:
        words = ["data", *user_dir(options), *words_of(options)]
        _check_model(fairseq.parse_args_and_arch(parser, words))
        return {}
    except WrongNumbers as wrong:
        own = {name: text for name, text in wrong.problems.items() if name in options}
        return own or dict(wrong.problems)
    except UserError as error:
        actions = parser._option_string_actions  # argparse has no public list
        for name, value in options.items():
            is_flag = getattr(actions.get(flag(name)), "nargs", None) == 0
            if is_flag and not isinstance(value, bool):
                return {name: f"{value!r}: it is a flag: write true or false"}
        # the first option in the message, apart from the layer's name before the message
        text = re.sub(r"^--head(-pointwise|-vocabulary)? \S+: ", "", str(error))
        named = map(option_name, re.findall(r"--[\w-]+", text))
        return {next((name for name in named if name in options), "arch"): str(error)}


def _refuse(_code: int, message: str) -> NoReturn:
    """Raise what a parser says, without the name of its command, in place of its exit."""
    raise UserError(message.partition(": error: ")[2].strip())


def _check_model(args: Namespace) -> None:
    """Check the options of an arch with one of our output layers: build it for 1,000 words."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    if hasattr(ARCH_MODEL_REGISTRY.get(getattr(args, "arch", "")), "attach_head"):
        on_meta(args, task_of(1000))


# name of the function of fairseq.options that makes the parser
PARSERS = {
    "train": "get_training_parser",
    "finetune": "get_training_parser",
    "generate": "get_generation_parser",
    "evaluate": "get_eval_lm_parser",
}
