"""The pages of results are what scripts/results_pages.py computes from records, and are short."""

import json
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.results.doubts import is_perplexity
from scripts import results_pages

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = DOCS / "records"
PAGES = results_pages.pages()
PERPLEXITY = r"\b\d\d\.\d\d\b(?! %)"


def different_lines(page: str, computed: str) -> list[str]:
    """Return `docs/page:line: …` for each line that is not what records and scripts give."""
    lines = zip_longest(
        (DOCS / page).read_text(encoding="utf-8").splitlines(), computed.splitlines()
    )
    return [
        f"docs/{page}:{number}: has {written!r}, and the records give {right!r}"
        for number, (written, right) in enumerate(lines, 1)
        if written != right
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_script_writes_and_short(page):
    assert different_lines(page, PAGES[page]) == []
    text = re.sub(r"```\{toctree\}.*?```|\]\([^)]*\)", "", PAGES[page], flags=re.DOTALL)
    words = [word for word in text.split() if re.search(r"\w", word)]
    most = 600 if page == "results.md" else 500
    assert len(words) <= most or not page.endswith(".md")


def test_every_study_has_a_page_and_every_figure_a_place():
    written = {f"results/{path.name}" for path in (DOCS / "results").glob("*.md")}
    drawn = {f"images/results/{path.name}" for path in (DOCS / "images" / "results").iterdir()}
    assert written | drawn == {page for page in PAGES if "/" in page} - {"images/gains.svg"}
    studies = {path.stem for path in RECORDS.iterdir()}
    assert {f"results/{name}.md" for name in (*studies, "measures")} == written
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    images = {path.name for path in (DOCS / "images").iterdir() if path.is_file()}
    images -= {"gains.svg"}  # of the page of results, as those in results/
    assert [name for name in images if f"(images/{name})" not in gallery] == []


def test_sizes_of_own_text_show_their_records():
    text = (DOCS / "howto" / "own_text.md").read_text(encoding="utf-8").partition("## Sizes")[2]
    (table,) = re.findall(r"\| text \| size \| result.*?\n\n", text, re.DOTALL)
    files = [*(RECORDS / "own_text").iterdir(), RECORDS / "multi30k_en_de" / "softmax.json"]
    records = [json.loads(path.read_text()) for path in files]
    known = {f"{value:.2f}" for record in records for value in record["metrics"].values()}
    shown = set(re.findall(r"\d+\.\d\d", table))
    assert len(shown) > 5 and shown <= known


def test_numbers_follow_the_records_and_an_unknown_name_ends_the_script():
    """The mean of three seeds, and a difference of two systems, computed here."""
    paths = {name: f"ptb_small/{name}-{{}}.json".format for name in ("mos", "sigsoftmax")}
    mos, best = (
        [json.loads((RECORDS / path(seed)).read_text())["metrics"] for seed in (1, 2, 3)]
        for path in paths.values()
    )
    own, other = (mean(m["test_perplexity"] for m in of) for of in (mos, best))
    text = results_pages.filled("ptb_small", "{mos}, {sigsoftmax - mos}, {mos: test_rank}.")
    assert text.startswith(f"{own:.2f}, {other - own:+.2f} [")
    assert text.endswith(f"], {mean(m['test_rank'] for m in mos):,.0f}.")
    for text, said in (
        ("{mos_dropoutl0.3}", "ptb_small: no records of 'mos_dropoutl0.3'"),
        ("{mos: test_nothing}", "ptb_small: 'mos' has no test_nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            results_pages.filled("ptb_small", text)


def seed_share(compared):
    """Return the share of a seed in the variance of its runs, over the systems: two-way layout."""
    log = np.log if is_perplexity(compared.metric) else np.array
    runs = [sorted(one.runs, key=lambda run: run.seed)[:3] for one in compared.systems]
    scores = [[run.record["metrics"][compared.metric] for run in of] for of in runs if len(of) > 2]
    if len(scores) < 2:
        return None
    left = log(scores) - log(scores).mean(1, keepdims=True)
    of_seeds = left.mean(0)
    within = ((left - of_seeds) ** 2).sum() / (2 * (len(scores) - 1))
    between = max(0.0, (of_seeds**2).sum() / 2 - within / len(scores))
    return between / (between + within)


def test_the_guide_says_in_how_many_studies_a_seed_explains_anything():
    texts = read_tree(DOCS / "results.yaml").values
    shares = [seed_share(results_pages.study(name)) for name in texts["studies"]]
    shares = sorted(share for share in shares if share is not None)
    small = sum(share < 0.01 for share in shares)
    low, high = (f"{100 * share:.0f}" for share in (shares[small], shares[-1]))
    said = f"In {small} of our {len(shares)} studies of two layers or more"
    text = (DOCS / "howto" / "seeds_table.md").read_text(encoding="utf-8")
    assert said in text and f"in the others {low} to {high} %." in text


def test_a_gain_is_grey_where_its_interval_has_0():
    svg = PAGES["images/results/ptb_small.svg"]
    rows = re.findall(r'anchor="start">([a-z]+)</text>\n<line [^>]*stroke="(#\w+)"', svg)
    assert {name for name, colour in rows if colour == results_pages.GREY} == {"moc"}
    middles = dict(re.findall(r'>(\w+)</text>\n.*\n<circle cx="([\d.]+)"', svg))
    zero = float(re.search(r'x1="([\d.]+)"', svg)[1])
    assert float(middles["plif"]) < zero < float(middles["mixtape"]) < float(middles["mos"])


def test_repeated_numbers_are_those_of_the_results():
    """Each perplexity and BLEU with two decimals is a mean in the tables of the results."""
    means = set(re.findall(r"\b(\d\d\.\d\d)(?: ±|\*\*| \[)", "".join(PAGES.values())))
    for path, least in (("README.md", 9), ("docs/reference/heads.md", 5)):
        found = re.findall(PERPLEXITY, (DOCS.parent / path).read_text(encoding="utf-8"))
        assert len(found) >= least and [of for of in found if of not in means] == [], path


def test_figures_are_drawn_from_the_records(tmp_path):
    script = DOCS.parent / "scripts" / "draw_figures.py"
    subprocess.run([sys.executable, script, "--output", tmp_path], check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn
    for name in drawn:
        kept = (DOCS / "images" / name).read_bytes()
        assert (tmp_path / name).read_bytes() == kept, "run: python scripts/draw_figures.py"
