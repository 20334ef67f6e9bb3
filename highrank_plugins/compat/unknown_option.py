"""A mistyped option or choice is answered with hundreds of names, or with none.

What breaks: `--head-componets 4` ends with 200 lines of usage above "unrecognized arguments:
--head-componets 4", and `--arch transformer_mixtpe` with the list of all architectures.
Why: argparse prints the usage at every error, and suggests nothing before Python 3.14.
What we do: print the error alone, and add the nearest name, in letters or meaning.
Delete when: Python 3.14 is the oldest supported, with `suggest_on_error`, and fairseq's usage is
shorter.
"""

import argparse
import re

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.patching import replaces


@replaces(argparse.ArgumentParser, "error")
def error(stock, parser, message: str):
    """End as argparse does; a parser of fairseq's says in one line what was probably meant."""
    if "--user-dir" not in parser._option_string_actions:
        return stock(parser, message)
    suggestions = _suggestions(parser, message)
    return parser.exit(2, f"{parser.prog}: error: {_choices_cut(message)}{suggestions}\n")


def _suggestions(parser: argparse.ArgumentParser, message: str) -> str:
    actions = parser._option_string_actions
    if message.startswith("unrecognized arguments:"):
        words = re.findall(r"--[\w-]+", message)
        return "".join(did_you_mean(word, list(actions)) for word in words)
    found = re.match(r"argument (--[\w-]+).*?: invalid choice: '([^']*)'", message)
    choices = actions[found[1]].choices if found and found[1] in actions else None
    return did_you_mean(found[2], list(choices)) if found and choices else ""


def _choices_cut(message: str) -> str:
    """Remove a list of choices that is too long to read."""
    head, sep, choices = message.partition(" (choose from ")
    return head if sep and choices.count(",") > 30 else message
