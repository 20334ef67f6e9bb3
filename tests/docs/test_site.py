"""The documentation builds without a warning, and its pages hold what the code says."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.recipes.running import run

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("sphinx", "furo", "myst_nb") if not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"needs requirements/docs.txt: {MISSING} missing"),
    pytest.mark.xdist_group("site"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the whole site by the command that people use."""
    folder = tmp_path_factory.mktemp("site") / "html"
    command = ["bash", ROOT / "scripts" / "docs.sh", "--output", folder]
    run(command)
    return folder


def test_every_page_is_in_the_navigation_and_loads_nothing_from_a_network(site):
    navigation = (site / "index.html").read_text(encoding="utf-8")
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    left_out = {"genindex.html", "py-modindex.html", "search.html", "index.html"}
    assert [page for page in sorted(pages - left_out) if f'href="{page}' not in navigation] == []
    loaded = r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"'
    assert [page for page in site.rglob("*.html") if re.search(loaded, page.read_text())] == []
