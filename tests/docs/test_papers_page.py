"""docs/papers.md is what scripts/papers_page.py prints, and its configurations exist."""

import re
from statistics import mean

import pytest

from highrank_plugins.common.blocks import ConfigurationError, read_tree
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


@pytest.mark.parametrize(("conf", "hours"), [
    ("ptb/merity2018/softmax", "8 (V100)"),  # 500 epochs of 55 s
    ("ptb/yang2019/mixtape", "≈ 13 (V100)"),  # 1,000 epochs of MoS's 100 s × 345 / 731
    ("wmt14_en_de/ott2018/softmax", "181 (V100)"),  # 85 minutes on 128 GPUs
    # 300,000 updates of 32,768 tokens, where Ott et al. have 30,000 of 458,752
    ("wmt14_en_de/yang2019/softmax", "≈ 130 (V100)"),
    ("wmt14_en_de/yang2019/mos", "≈ 215 (V100)"),  # × 30.08 / 18.15
    # 1.6 billion words by 700, 119 ms each, and 856 ms
    ("one_billion_word/yang2018/softmax", "≈ 76 (GPU of 12 GB)"),
    ("one_billion_word/yang2018/mos", "≈ 545 (GPU of 12 GB)"),
    ("text8/yang2018/mos7", "≈ 13 (V100)"),
])  # fmt: skip
def test_hours_follow_from_printed_times_and_timed_runs(conf, hours):
    task, _, name = conf.partition("/")
    assert papers_page.hours({"task": task, "confs": [name]}) == hours


def test_rows_have_their_runs_hours_and_scores(monkeypatch):
    grid = {"head_gss_c": [-2, 0.5], "head_gss_k": [3]}
    row = {"task": "ptb", "confs": ["parthiban2021/gss_et"], "grid": grid}
    assert papers_page.loop(row) == (
        "for c in -2 0.5; do for k in 3; do bash recipes/ptb/run.sh --conf parthiban2021/gss_et "
        "--set head_gss_c=$c --set head_gss_k=$k --name grid_c${c}_k${k}; done; done"
    )
    assert papers_page.hours(row) == "32 (V100)"  # 2 × 1,000 epochs of 58 s
    assert papers_page.study("ptb/layers") == "`recipes/ptb/studies/layers.yaml` (21 runs)"
    with pytest.raises(ConfigurationError, match=r"layer\.yaml: no such configuration.*layers"):
        papers_page.study("ptb/layer")
    # scores that another table prints first, and that another paper quotes
    for paper, row, shown in (
        ("yang2018", {"number": "Table 7", "task": "ptb", "kinds": ["rank"]},
         "| MoS, K = 15 | 9,981"),
        ("yang2019", {"number": "Table 1", "task": "wmt14_en_fr", "kinds": ["tokenised"]},
         "| Transformer big, softmax | 43.2 ± 0.6 |\n"),
        ("yang2018", {"number": "Table 13", "cells": ["slowdown (same batch)"]},
         "| WikiText-2: MoS, K = 15 | 2.5 |"),
    ):  # fmt: skip
        assert shown in papers_page.expected(paper, row)
    monkeypatch.setattr(papers_page, "papers", lambda: {"untimed": {}})
    with pytest.raises(ValueError, match="no source times text8/yang2018/mos7"):
        papers_page.hours({"task": "text8", "confs": ["yang2018/mos7"]})


def test_gains_and_times_are_those_of_the_records():
    study = "ptb_matched_by_parameters"
    softmax, mixtape = (
        papers_page.scores_of(study, name, "test_perplexity") for name in ("softmax", "mixtape")
    )
    found = f"{mean(softmax) - mean(mixtape):.1f} better"
    found += f" (p = {papers_page.p_value(softmax, mixtape):.2g})"
    (row,) = [row for row in PAPERS["yang2019"]["tables"] if row["number"] == "Table 3"]
    assert found in row["here"]
    one, other = rows_with("timed")
    for row in (one, other):
        assert papers_page.times(row).endswith("K = 15: 2.67")
    assert "; K = 5: 1.27, K = 10: 1.83, K = 15: 2.67" in papers_page.times(one)
    assert "; Mixtape: 0.91, Mixtape with gates for all words: 1.48" in papers_page.times(other)


@pytest.mark.parametrize(("systems", "equal", "verdict"), [
    (["mos", "softmax"], False, "same order, p ≤ "),
    (["softmax", "mos"], False, "other order"),
    (["softmax", "moc"], False, "not decided, p up to "),
    (["mos", "moc", "softmax"], False, "not decided, p up to "),
    # systems that a paper finds equal
    (["mos", "softmax"], True, "other order, the paper finds none, p = "),
    (["moc", "softmax"], True, "not decided, "),
])  # fmt: skip
def test_a_verdict_compares_orders(monkeypatch, systems, equal, verdict):
    runs = {"mos": [1.0, 1.1, 1.2], "softmax": [2.0, 2.1, 2.2], "moc": [2.0, 2.2, 2.1]}
    monkeypatch.setattr(papers_page, "scores_of", lambda study, system, metric: runs[system])
    order = {"study": "x", "metric": "test_perplexity", "systems": systems}
    kind, found, here = papers_page.verdict_of(
        {"order": order | ({"equal": True} if equal else {})}
    )
    assert equal or here.startswith("mos 1.10" if "mos" in systems else "softmax 2.10")
    assert found.startswith(verdict) and verdict.startswith(kind)
    assert papers_page.p_value([66, 66], [46, 46]) == 0 and papers_page.p_value([1, 1], [1, 1]) == 1
