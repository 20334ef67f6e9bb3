"""The documentation builds without a warning, and its pages hold what the code says."""

import importlib.util
import re
import shutil
import subprocess
from html import unescape
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


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_is_cut(site, width):
    command = f"chromium --headless --no-sandbox --window-size={width},844 --dump-dom".split()
    cut = {}
    for page in site.rglob("*.html"):
        done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True)
        (number,) = re.findall(r'data-cut-tables="(\d+)"', done.stdout)
        cut[page.name] = int(number)
    assert {page: number for page, number in cut.items() if number} == {}


@pytest.mark.parametrize(("page", "words"), [
    ("generated/commands", ["highrank measure", "card, collect, spectra", "highrank doctor"]),
    ("generated/commands/measure", ["highrank measure", "--tokens"]),
    ("generated/options", ["--head-context-scale", "--head-gss-c", "--ar-alpha", "--noam-dim"]),
    ("generated/configuration", ["character_coverage", "sentencepiece, subword_nmt", "spectrum"]),
    ("api/heads", ["build_head", "num_classes", "Raises"]),
])  # fmt: skip
def test_generated_pages_contain_the_names_in_the_code(site, page, words):
    html = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
    text = unescape(re.sub(r"<[^>]+>", "", html))
    assert [word for word in words if word not in text] == []
    (schema,) = site.glob("_downloads/*/configuration.schema.json")
    assert '"vocab_size"' in schema.read_text()
