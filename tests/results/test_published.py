"""The papers' scores: each kind in its column, each with a source, as it was compared with it."""

import hashlib
import re

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


def test_kinds_are_kept_apart():
    ours = {"exp/a": {"sacrebleu": 20.04, "chrf": 50.0, "bleu_compound_split": 21.0}}
    rows = table("wmt14_en_de", ours).splitlines()
    assert rows[0] == "| system | sacrebleu | compound_split | unstated | source |"
    assert rows[2] == "| exp/a | 20.0 | 21.0 |  | this run |"
    assert rows[3] == "| Transformer big, softmax | 28.6 | 29.3 |  | Ott et al. 2018 |"
    rows = table("wmt14_en_de", {"exp/a": {"sacrebleu": 20.0, "bleu_tokenised": 19.5}}).splitlines()
    assert rows[0] == "| system | sacrebleu | tokenised | compound_split | unstated | source |"
    assert rows[2] == "| exp/a | 20.0 | 19.5 |  |  | this run |"


def test_perplexities_have_deviations():
    ours = {"exp/mos": {"test_perplexity": 55.123, "test_kld": 5.4}}
    rows = table("ptb", ours).splitlines()
    columns = "valid ppl | test ppl | test ppl (cache) | test ppl (dynamic) | rank | KLD"
    assert rows[0] == f"| system | {columns} | source |"
    assert rows[2] == "| exp/mos |  | 55.12 |  |  |  | 5.400 | this run |"
    gss = "| GSS | 59.51 ± 0.13 | 57.00 ± 0.14 |  |  | 8,904 ± 57 |"
    assert any(row.startswith(gss) for row in rows)


def test_details_are_shown_if_a_run_has_them():
    details = ("train ppl", "ε-rank (1e-4)", "ms/batch (layer)", "p against softmax")
    heading = table("ptb", {}).splitlines()[0]
    assert not any(kind in heading for kind in details)
    ours = {"exp/mos": {"test_perplexity": 55.123, "test_effective_rank_0.0001": 1500}}
    rows = table("ptb", ours).splitlines()
    assert rows[0].endswith("| rank | ε-rank (1e-4) | source |")
    assert rows[2] == "| exp/mos |  | 55.12 |  |  |  | 1,500 | this run |"


def test_word_similarities_of_a_run_are_in_the_papers_columns():
    ours = {"exp/mos": {f"similarity_{file}": 0.25 for file in BENCHMARKS}}
    rows = table("ptb", ours).splitlines()
    found = dict(zip(rows[0].split(" | "), rows[2].split(" | "), strict=True))
    for entry in read_published("ptb"):
        for benchmark in entry.similarity:
            assert found[f"similarity_{benchmark}"] == "0.2500"
    assert sum(name.startswith("similarity_") for name in found) == len(BENCHMARKS) == 13
    headings, mos = rows[0].split(" | "), next(row for row in rows if "MoS, averaging" in row)
    assert dict(zip(headings, mos.split(" | "), strict=True))["similarity_MEN"] == "0.3789"
    assert "similarity" not in table("ptb", {})


def test_parameters_have_a_column_if_a_run_has_them():
    rows = table("ptb", {"exp/mos": {"test_perplexity": 55.1, "parameters": 21.5e6}}).splitlines()
    assert rows[0].endswith("| parameters | source |")
    assert rows[2].endswith("| 21,500,000 | this run |")
    assert any(row.endswith("| 24,221,600 | Yang et al. 2018 |") for row in rows)


def test_scores_of_the_validation_text_are_shown_beside_the_papers():
    ours = {"exp/mos": {"valid_dynamic_perplexity": 48.333, "valid_rank": 9981, "valid_kld": 5.4}}
    rows = table("ptb", ours).splitlines()
    headings, cells = rows[0].split(" | "), rows[2].split(" | ")
    found = dict(zip(headings, cells, strict=True))
    shown = [found[f"valid {name}"] for name in ("ppl (dynamic)", "rank", "KLD")]
    assert shown == ["48.33", "9,981", "5.400"]


def test_both_checkpoints_of_a_finetuned_run_have_a_row():
    ours = {"exp/mos": {"test_perplexity": 54.4, "test_perplexity_before_finetuning": 55.9}}
    rows = table("ptb", ours).splitlines()
    assert rows[2].startswith("| exp/mos, before finetuning |  | 55.90 |")
    assert rows[3].startswith("| exp/mos |  | 54.40 |")


def test_a_mistyped_task_gets_a_suggestion():
    with pytest.raises(ValueError, match="'wmt14_en_ed'; did you mean 'wmt14_en_de'"):
        read_published("wmt14_en_ed")


@pytest.mark.parametrize("task", read_tree(FILE).values)
def test_scores_in_the_comments_of_configurations_are_the_published_ones(task):
    """Look for numbers such as 58.08 in the comments before the first key."""
    known: dict[str, set[float]] = {}
    for entry in published(task):
        printed = re.findall(r"\d+\.\d+", " ".join(entry.errata.values()))
        numbers = [*entry.scores.values(), *entry.deviations.values(), *map(float, printed)]
        known.setdefault(str(entry.conf), set()).update(numbers)
    for conf in known.keys() - {"None"}:
        text = (RECIPES / task / "conf" / f"{conf}.yaml").read_text(encoding="utf-8")
        heading = " ".join(re.findall(r"(?m)^#.*", text))
        for number in re.findall(r"(?<![\w.])\d\d\.\d\d?(?![\d.M%])", heading):
            assert float(number) in known[conf], (conf, number)


def test_every_kind_of_score_is_published_somewhere():
    tasks = read_tree(FILE).values
    used = {kind for task in tasks for entry in published(task) for kind in entry.scores}
    assert used == set(KINDS)


def test_the_numbers_are_those_that_were_compared_with_the_papers():
    """After a change, compare the cell with its table and its errata, then print this again.

    What follows from other cells was recomputed once: p-values, ranks of a softmax, parameters,
    perplexities with the right count of tokens, gains, times, slowdowns and counts of knots.
    """
    text = yaml.safe_dump(read_tree(FILE).values, sort_keys=True, allow_unicode=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4c76fa363f2f615c"
