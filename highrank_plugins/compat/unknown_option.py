"""A mistyped option or architecture is answered with hundreds of names, or with none.

What breaks: `--head-componets 4` ends with "unrecognized arguments: --head-componets 4", and
`--arch transformer_mixtpe` with the list of all architectures.
Why: argparse suggests nothing before Python 3.14.
What we do: add the nearest name, in letters or meaning, to these two messages.
Delete when: Python 3.14 is the oldest supported, with `suggest_on_error`.
"""

import argparse
import re

from fairseq.models import ARCH_MODEL_REGISTRY

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.patching import replaces


@replaces(argparse.ArgumentParser, "error")
def error(stock, parser, message: str):
    """End as argparse does; if it is a parser of fairseq's, name what was probably meant."""
    known = parser._option_string_actions
    if "--user-dir" in known:
        message = _choices_cut(message) + _suggestions(message, list(known))
    return stock(parser, message)


def _suggestions(message: str, known: list[str]) -> str:
    if message.startswith("unrecognized arguments:"):
        words = re.findall(r"--[\w-]+", message)
        return "".join(did_you_mean(word, known) for word in words)
    found = re.match(r"argument --arch.*?: invalid choice: '([^']*)'", message)
    return did_you_mean(found[1], ARCH_MODEL_REGISTRY) if found else ""


def _choices_cut(message: str) -> str:
    """Remove a list of choices that is too long to read."""
    head, sep, choices = message.partition(" (choose from ")
    return head if sep and choices.count(",") > 30 else message
