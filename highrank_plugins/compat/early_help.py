"""`--help` hides the options of the chosen architecture, task and criterion.

What breaks: `fairseq-train --arch transformer_mixtape --help` lists no `--head…` option.
Why: fairseq parses twice, the second time with the options of the architecture, task and criterion
that the first found. argparse prints the help and exits in the first.
What we do: in the first parse of one of fairseq's parsers, ignore `--help` and the missing
arguments that it excuses. The second parse prints the help. Without an architecture there is no
second parse, so the first one prints the help.
Delete when: fairseq does so.
"""

import argparse
import sys

from highrank_plugins.common.patching import replaces

_HELP = {"-h", "--help"}


@replaces(argparse.ArgumentParser, "parse_known_args")
def parse_known_args(stock, parser, args=None, namespace=None):
    """Parse as argparse does, but let fairseq's first parse finish when --help is given."""
    words = sys.argv[1:] if args is None else list(args)
    if not _is_first_of_fairseq(parser) or not _HELP & set(words) or _lacks_arch(parser, words):
        return stock(parser, args, namespace)
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    try:
        return stock(parser, [word for word in words if word not in _HELP], namespace)
    finally:
        for action in required:
            action.required = True


def _is_first_of_fairseq(parser) -> bool:
    if not parser.add_help or "--user-dir" not in parser._option_string_actions:
        return False
    first = not getattr(parser, "highrank_parsed", False)
    parser.highrank_parsed = True
    return first


def _lacks_arch(parser, words: list[str]) -> bool:
    given = any(word in ("-a", "--arch") or word.startswith("--arch=") for word in words)
    return "--arch" in parser._option_string_actions and not given
