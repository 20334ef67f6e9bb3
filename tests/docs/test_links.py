"""Links between pages work where the repository is read as plain files, and so do their anchors."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_prose import PAGES, ROOT

MORE = [ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]


def without_code(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    code = re.compile(r"^( *)(```+).*?^\1\2", re.DOTALL | re.MULTILINE)
    return code.sub(lambda found: "\n" * found[0].count("\n"), text)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as git hosts and the site make them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """Return `page:line: link` of links and images that lead nowhere, or to the built site only."""
    found, text = [], without_code(page)
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        link = match[1]
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        known = target.exists() and "generated" not in target.parts
        if not known or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}: {link}")
    return found


@pytest.mark.parametrize("page", [*PAGES, *MORE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A title: two words\n")
    page = tmp_path / "page.md"
    links = "[a](other.md#a-title-two-words) [b](other.md#b) [c](no.md) [d](#page) [e](#a)"
    page.write_text(f"# Page\n\n{links}\n")
    assert broken(page) == ["page.md:3: other.md#b", "page.md:3: no.md", "page.md:3: #a"]
