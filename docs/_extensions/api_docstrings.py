"""Turn the docstrings of the code into reStructuredText before autodoc reads them.

Docstrings are plain text with `code` in single backticks and formulas such as |x| or h_k*w_x. They
are written for `help()`. Here special characters are escaped; napoleon then reads "Args:" etc.
"""

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
SIGNS = re.compile(r"([\\*|]|(?<=\w)_(?=\W|$))")


def to_rst(line: str) -> str:
    """Escape the special characters of a line outside of code; put code in double backticks."""
    parts = CODE.split(line)
    parts[::2] = [SIGNS.sub(r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part.strip('`')}``" for part in parts[1::2]]
    return "".join(parts)


def indentation(line: str) -> int:
    """Return the number of spaces that a line begins with."""
    return len(line) - len(line.lstrip())


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring in place."""
    done: list[str] = []
    for line in lines:
        last = done[-1] if done else ""
        heading = last.rstrip().endswith(":") and not last.startswith(" ")
        if line.strip() and last.strip() and indentation(line) != indentation(last) and not heading:
            deeper_entry = re.match(r"\s+[\w, *]+(\([^)]*\))?: ", last)
            if not (deeper_entry or indentation(line) < indentation(last)):
                done.append("")
        done.append(line if line.lstrip().startswith(">>>") else to_rst(line))
    lines[:] = done


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler, before that of napoleon (priority 500)."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True}
