"""docs/papers.md is what scripts/papers_page.py prints, and its configurations exist."""

import re

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.results.published import FILE, read_published
from highrank_plugins.studies.definition import script_options
from highrank_plugins.training import configuration
from scripts import papers_page
from tests.docs.test_results_pages import different_lines
from tests.recipes.running import RECIPES

ROOT = RECIPES.parent


PAPERS = papers_page.papers()["papers"]


def rows_with(name: str) -> list[dict]:
    return [row for paper in PAPERS.values() for row in paper["tables"] if name in row]


def test_the_page_is_what_the_script_prints_and_begins_with_the_table_of_verdicts():
    assert different_lines("papers.md", papers_page.page()) == []
    first = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert len([word for word in first.split() if re.search(r"\w", word)]) <= 250
    rows = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", first)
    assert len(rows) == 5 and all(int(all_) == sum(map(int, each)) for all_, *each in rows)


def test_every_configuration_and_option_of_a_command_exists():
    assert len(rows_with("confs")) > 20 and rows_with("options")
    for row in rows_with("confs"):
        for conf in row["confs"]:
            assert (RECIPES / row["task"] / "conf" / f"{conf}.yaml").is_file(), (row, conf)
    for row in rows_with("options"):
        known = script_options(RECIPES / row["task"])
        for words in row["options"]:
            name = words.split()[0].removeprefix("--").replace("-", "_")
            assert name in known, (row, name)
            assert f" {words}" in papers_page.loop(row)
    for pattern in papers_page.papers()["untimed"]:
        task, _, conf = pattern.partition("/")
        assert any((RECIPES / task / "conf").glob(f"{conf}.yaml")), pattern


# part of a kind of score or of a system → the block, or the words, that its command needs
BLOCKS = {
    "(dynamic)": "dynamic_eval", "(cache)": "cache_eval", "rank": "spectrum", "KLD": "kld",
    ", finetuned": "finetune",
}  # fmt: skip
OPTIONS = {
    "train ": "--splits train,valid,test", "valid rank": "--measured valid,test",
    "valid KLD": "--measured valid,test",
}  # fmt: skip


def test_every_system_with_a_configuration_is_trained_and_measured_by_a_row():
    checked = set()
    for key, row in ((key, row) for key, paper in PAPERS.items() for row in paper["tables"]):
        cells = papers_page.printed_cells(key, row, row["task"]) if "confs" in row else ()
        for entry, kind in cells:
            if entry.conf is None or kind not in entry.scores:
                continue
            assert entry.conf in row["confs"], (row, entry)
            conf = RECIPES / row["task"] / "conf" / f"{entry.conf}.yaml"
            blocks = configuration.load(conf, row.get("set", [])).blocks()
            what = f"{kind}, {entry.system}"
            assert {need for part, need in BLOCKS.items() if part in what} <= blocks.keys(), what
            needed = {need for part, need in OPTIONS.items() if part in what}
            assert needed <= set(row.get("options", [])), what
            checked.add(kind)
    kinds = {"test ppl (dynamic)", "test ppl (cache)", "valid rank", "KLD", "train ppl"}
    assert kinds <= checked
    for task in read_tree(FILE).values:
        for entry in read_published(task):
            paper = PAPERS.get(papers_page.paper_of(entry))
            if entry.conf is not None and paper is not None:
                rows = [row for row in paper["tables"] if row.get("task") == task]
                assert any(entry.conf in row["confs"] for row in rows), (task, entry)


def test_no_table_or_figure_is_left_out():
    name = re.compile(r"(Table|Figure)s? ((?:\d+|, | and | to )+)( of the supplement)?")
    for key, paper in PAPERS.items():
        found: dict[tuple[str, str], set[int]] = {}
        printed = "; ".join(row["number"] for row in paper["tables"])
        for kind, numbers, where in name.findall(printed):
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
                numbered = range(int(first), int(last or first) + 1)
                found.setdefault((kind, where), set()).update(numbered)
        for place, numbers in found.items():
            assert numbers == set(range(1, max(numbers) + 1)), (key, place)


def test_records_of_a_command_are_where_the_recipe_writes_them():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    found = re.findall(r"exp/(\w+)/(?!studies/)(\S+)/results\.json", text)
    named = re.findall(r"recipes/(\w+)/run\.sh [^`;]*--name ([^`;]+)", text)
    named = {(task, re.sub(r"\$\{\w+\}", "*", name)) for task, name in named}
    assert named & set(found)
    seeded = re.findall(r"recipes/(\w+)/run\.sh [^`;]*--name \$c-\$s", text)
    for task, names in set(found) - named:
        if task in seeded:
            names = names.removesuffix("-{1..10}")
        braces = re.search(r"\{(.*)\}", names)
        for name in braces[1].split(",") if braces else [""]:
            pattern = names.replace(braces[0], name) if braces else names
            confs = (RECIPES / task / "conf").glob(f"{pattern}.yaml")
            assert any(path.stem != "base" for path in confs), (task, pattern)
