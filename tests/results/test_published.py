"""The papers' scores: each kind in its column, each with a source, as it was compared with it."""

import hashlib

import pytest
import yaml

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.reports.comparisons import published_table
from highrank_plugins.reports.tables import to_markdown
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import BENCHMARKS, FILE, read_published
from tests.recipes.running import RECIPES
from tests.results.entries import published


def table(task, ours):
    return to_markdown([published_table(task, ours)])


@pytest.mark.parametrize("task", read_tree(FILE).values)
def test_entries_are_complete_and_belong_to_a_recipe(task):
    assert (RECIPES / task).is_dir()
    names = [(entry.system, entry.source) for entry in read_published(task)]
    assert len(set(names)) == len(names)
    for entry in read_published(task):
        assert entry.source and entry.table
        assert entry.scores.keys() <= KINDS.keys()
        assert entry.deviations.keys() <= entry.scores.keys()
        assert (entry.seeds > 1) == bool(entry.deviations)
        named = {*entry.scores, *entry.cells}
        assert not entry.cells.keys() & KINDS.keys()
        assert entry.elsewhere.keys() <= named
        assert entry.table not in entry.also and (entry.scores or not entry.also)
        assert entry.errata.keys() <= named | {"parameters"}
        assert named
        if entry.conf is not None:
            assert (RECIPES / task / "conf" / f"{entry.conf}.yaml").is_file(), entry.conf


def cells_of(task, metrics):
    """Return the headings, and the cells of a run by heading."""
    head, _, run, *_ = table(task, {"exp/mos": metrics}).splitlines()
    headings = head.strip("| ").split(" | ")
    return headings, dict(zip(headings, run[2:-2].split(" | "), strict=True))


PPL = ["valid ppl", "test ppl", "test ppl (cache)", "test ppl (dynamic)", "rank"]
SIMILAR = {f"similarity_{file}": 0.25 for file in BENCHMARKS}


@pytest.mark.parametrize(
    ("task", "metrics", "headings", "shown"),
    [
        ("wmt14_en_de", {"sacrebleu": 20.04, "chrf": 50.0, "bleu_compound_split": 21.0},
         ["sacrebleu", "compound_split", "unstated"],
         {"sacrebleu": "20.0", "compound_split": "21.0", "unstated": "", "source": "this run"}),
        ("ptb", {"test_perplexity": 55.123, "test_kld": 5.4}, [*PPL, "KLD"],
         {"valid ppl": "", "test ppl": "55.12", "KLD": "5.400"}),
        ("ptb", {"test_perplexity": 55.1, "parameters": 21.5e6}, [*PPL, "parameters"],
         {"parameters": "21,500,000"}),
        ("ptb", {"valid_dynamic_perplexity": 48.333, "valid_rank": 9981, "valid_kld": 5.4}, None,
         {"valid ppl (dynamic)": "48.33", "valid rank": "9,981", "valid KLD": "5.400"}),
        ("ptb", {"test_perplexity": 54.4, "test_perplexity_before_finetuning": 55.9}, PPL,
         {"system": "exp/mos, before finetuning", "test ppl": "55.90"}),
        ("ptb", SIMILAR, None, {f"similarity_{name}": "0.2500" for name in BENCHMARKS.values()}),
    ],
)  # fmt: skip
def test_each_kind_of_score_has_its_column(task, metrics, headings, shown):
    found, cells = cells_of(task, metrics)
    assert headings is None or found == ["system", *headings, "source"]
    assert shown.items() <= cells.items()


def test_the_numbers_are_those_that_were_compared_with_the_papers():
    """After a change, compare the cell with its table and its errata, then print this again.

    What follows from other cells was recomputed once: p-values, ranks of a softmax, parameters,
    perplexities with the right count of tokens, gains, times, slowdowns and counts of knots.
    """
    tasks = read_tree(FILE).values
    used = {kind for task in tasks for entry in published(task) for kind in entry.scores}
    assert used == set(KINDS)
    text = yaml.safe_dump(tasks, sort_keys=True, allow_unicode=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4c76fa363f2f615c"
