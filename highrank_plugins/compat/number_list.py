"""A mistyped list of numbers ends in `SyntaxError`, or in a message that says nothing.

What breaks: `--lr '$rate'` and `--update-freq '1;'` end in a traceback of `ast.literal_eval`, and
`--lr abc` in "invalid <lambda> value: 'abc'".
Why: argparse explains only a `ValueError` of an option's type, and does so by that function's name.
What we do: say what was expected.
Delete when: fairseq does so.
"""

import argparse

from fairseq.dataclass import utils

from highrank_plugins.common.patching import replaces


@replaces(utils, "eval_str_list")
def eval_str_list(stock, text, kind=float):
    """Return the numbers in an option's value."""
    try:
        return stock(text, kind)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise argparse.ArgumentTypeError(
            f"expected a number, or several separated by commas (0.1,0.2), got {str(text)[:60]!r}"
        ) from None
