"""Check options by fairseq's own parser, with our models, before anything is computed."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import highrank_plugins
from highrank_plugins.common.blocks import ConfigurationError, Tree
from highrank_plugins.common.names import did_you_mean, flag, option_name
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
    """Return what is wrong with each invalid option, by name."""
    highrank_plugins.register()
    from fairseq import options as fairseq  # now with our checks

    parser = getattr(fairseq, PARSERS[tool])()
    parser.error = _reject
    words = ["data", *user_dir(options), *words_of(options)]
    try:
        args, left = fairseq.parse_args_and_arch(parser, words, parse_known=True)
        _check_model(args)
    except _Rejected as rejection:
        return _explain(parser, str(rejection), options)
    except WrongNumbers as wrong:
        own = {name: text for name, text in wrong.problems.items() if name in options}
        return own or dict(wrong.problems)
    except UserError as error:
        # the first option in the message, apart from the layer's name before the message
        text = re.sub(r"^--head(-pointwise|-vocabulary)? \S+: ", "", str(error))
        named = map(option_name, re.findall(r"--[\w-]+", text))
        return {next((name for name in named if name in options), "arch"): str(error)}
    # argparse has no public list of its options
    actions = parser._option_string_actions
    program, known = PROGRAMS[tool].words, list(map(option_name, actions))
    unknown = {
        name: f"{program} has no {flag(name)}{did_you_mean(name, known)}"
        for name in options
        if flag(name) in left
    }
    no_flags = {
        name: f"{value!r}: it is a flag: write true or false"
        for name, value in options.items()
        if not isinstance(value, bool) and getattr(actions.get(flag(name)), "nargs", None) == 0
    }
    return unknown | no_flags


def _check_model(args: Namespace) -> None:
    """Check the options of an arch with one of our output layers: build it for 1,000 words."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    if hasattr(ARCH_MODEL_REGISTRY.get(getattr(args, "arch", "")), "attach_head"):
        on_meta(args, task_of(1000))


class _Rejected(Exception):
    """Carry argparse's message, instead of ending the process."""


def _reject(message: str) -> NoReturn:
    raise _Rejected(message)


# name of the function of fairseq.options that makes the parser
PARSERS = {
    "train": "get_training_parser",
    "finetune": "get_training_parser",
    "generate": "get_generation_parser",
    "evaluate": "get_eval_lm_parser",
}


def _explain(parser: Any, message: str, options: Mapping[str, object]) -> dict[str, str]:
    """Turn argparse's `argument --lr: invalid …` into a message for the option of that name."""
    found = re.match(r"argument (--[\w-]+)[^:]*: (.*)", message, re.DOTALL)
    if not found:
        return {"options": message}
    option, problem = found.groups()
    name = option_name(option)
    if problem.startswith("invalid choice"):
        value = str(options[name])
        choices = [str(choice) for choice in parser._option_string_actions[option].choices]
        problem = f"{value!r} is not a choice{did_you_mean(value, choices)}"
        if name == "arch" and "user_dir" not in options:
            problem += "; for a layer of your own, name the folder of its package as user_dir"
    elif problem.startswith("expected one argument"):
        problem = "takes a value; quote it if it is the word true or false"
    return {name: problem}
