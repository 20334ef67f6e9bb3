"""The documentation builds without a warning, and its pages hold what the code says."""

import importlib.util
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

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
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_in_the_navigation(site):
    navigation = (site / "index.html").read_text(encoding="utf-8")
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    left_out = {"genindex.html", "py-modindex.html", "search.html", "index.html"}
    assert [page for page in sorted(pages - left_out) if f'href="{page}' not in navigation] == []


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


def test_nothing_is_loaded_from_a_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert loaded == [], page


@pytest.mark.parametrize(("page", "words"), [
    ("commands", ["highrank measure", "card, collect, spectra", "highrank doctor"]),
    ("commands/measure", ["highrank measure", "--tokens"]),
    ("options", ["--head-context-scale", "--head-gss-c", "--ar-alpha", "--noam-dim"]),
    ("configuration", ["character_coverage", "sentencepiece, subword_nmt", "spectrum"]),
])  # fmt: skip
def test_generated_pages_contain_the_names_in_the_code(site, page, words):
    text = text_of(site / "reference" / "generated" / f"{page}.html")
    assert [word for word in words if word not in text] == []


def test_the_api_has_signatures_and_arguments(site):
    text = text_of(site / "reference" / "api" / "heads.html")
    assert "build_head" in text and "num_classes" in text and "Raises" in text
    (schema,) = site.glob("_downloads/*/configuration.schema.json")
    assert '"vocab_size"' in schema.read_text()
