"""The command line of this process, for records."""

import shlex
import sys


def typed_command() -> str:
    """`highrank …`, as for a shell."""
    return shlex.join(["highrank", *sys.argv[1:]])
