"""The figures that are drawn from records are up to date."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_figures_are_drawn_from_the_records(tmp_path):
    script = ROOT / "scripts" / "draw_figures.py"
    subprocess.run([sys.executable, script, "--output", tmp_path], check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn
    for name in drawn:
        kept = (ROOT / "docs" / "images" / name).read_bytes()
        assert (tmp_path / name).read_bytes() == kept, "run: python scripts/draw_figures.py"


def test_every_figure_is_in_the_gallery():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    images = {path.name for path in (ROOT / "docs" / "images").iterdir() if path.is_file()}
    images -= {"gains.svg"}  # of the page of results, as those in results/
    assert [name for name in images if f"(images/{name})" not in gallery] == []
