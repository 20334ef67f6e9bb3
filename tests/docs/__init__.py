import re
from pathlib import Path


def examples(*pages: Path) -> dict[str, str]:
    """Return the blocks of pages that follow `<!-- example: NAME -->`."""
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    return dict(re.findall(r"<!-- example: (\w+) -->\n```\w+\n(.*?)```", text, re.DOTALL))
