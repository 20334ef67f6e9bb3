"""Cells of the papers that follow from other cells agree with them."""

import hashlib
import re

import pytest
import yaml

from highrank_plugins.analysis.statistics import Summary, student_t
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.data.corpora.word_corpora import PTB, WIKITEXT2
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import FILE, Published
from highrank_plugins.training import configuration
from tests.recipes.running import RECIPES
from tests.results.entries import TASKS, TEN, entry_of, parthiban, published

ONE_SEED = "averaging from epoch 200, one seed"
WORDS = {"ptb": 10_000, "wikitext2": 33_278}
# sources whose codes divide a loss by one row more than they predict
COUNTING_CODES = ("Merity et al. 2018", "Yang et al. 2018", "Parthiban et al. 2021")


def ten_seeds(entry: Published) -> Summary:
    return Summary(entry.scores[TEN], entry.deviations[TEN], 10)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("system", ["SigSoftmax", "GSS", "PLIF", "MoS"])
def test_p_values_follow_from_means_and_deviations(task, system):
    softmax, other = parthiban(task, "softmax"), parthiban(task, system)
    result = student_t(ten_seeds(softmax), ten_seeds(other))
    assert f"{result.p_value:.2e}" == f"{other.cells['p against softmax']:.2e}"
    assert result.statistic > 0  # the softmax has the higher perplexity


@pytest.mark.parametrize(("task", "corpus"), [("ptb", PTB), ("wikitext2", WIKITEXT2)])
def test_an_erratum_gives_the_perplexity_with_the_right_count_where_it_changes_a_digit(
    task, corpus
):
    """Divide the loss of the validation text in ten streams, or of the test text, by a row less."""
    found = 0
    for entry in published(task):
        quoted = "as Yang et al. 2018" in entry.system
        if not (entry.source.startswith(COUNTING_CODES) or quoted):
            continue
        digits = 1 if entry.source.startswith("Merity") else 2
        for kind, rows in (
            ("valid ppl", corpus.tokens["valid"] // 10),
            ("test ppl", corpus.tokens["test"]),
            ("valid ppl (dynamic)", corpus.tokens["valid"]),
            ("test ppl (dynamic)", corpus.tokens["test"]),
        ):
            if kind not in entry.scores:
                continue
            printed = entry.scores[kind]
            right = f"{printed ** (rows / (rows - 1)):.{digits}f}"
            erratum = f"one token more than it predicts; {right} with the right count"
            changed = right != f"{printed:.{digits}f}"
            assert (erratum in entry.errata.get(kind, "")) == changed, (entry, kind, right)
            found += changed
    assert found > 20


@pytest.mark.parametrize("task", TASKS)
def test_ranks_of_one_softmax_are_the_width_plus_two(task):
    for name in ("softmax", "MoC"):
        entry = parthiban(task, f"{name}, {ONE_SEED}")
        arch = configuration.load(RECIPES / task / "conf" / f"{entry.conf}.yaml").train["arch"]
        width = {"softmax": 400, "moc": {"ptb": 280, "wikitext2": 300}[task]}
        assert entry.scores["rank"] == width[arch.split("_")[3]] + 2
    printed = {"softmax": 400, "MoC": 280}
    if task == "ptb":  # Yang et al. 2018 print d
        for name, rank in printed.items():
            assert entry_of(task, name, "Yang et al. 2018").scores["rank"] == rank


@pytest.mark.parametrize("task", TASKS)
def test_parameters_follow_from_the_sizes(task):
    words = WORDS[task]

    def count(sizes, features, components):
        embed, hidden, last = sizes
        units = [(embed, hidden), (hidden, hidden), (hidden, last)]
        lstms = sum(4 * h * (i + h) + 8 * h for i, h in units)
        mixture = features * components + (features + 1) * components * embed if components else 0
        return words * embed + words + lstms + mixture

    mos = {"ptb": (280, 960, 620), "wikitext2": (300, 1150, 650)}[task]
    softmax, mixture = count((400, 1150, 400), 0, 0), count(mos, mos[2], 15)
    for name, expected in (
        ("softmax", softmax),
        ("GSS", softmax),
        ("SigSoftmax", softmax),
        ("PLIF", softmax + 100_000),
        ("MoS", mixture),
    ):
        assert parthiban(task, name).parameters == expected


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

    The printed gains, times, slowdowns and counts of knots were recomputed from other cells once.
    """
    text = yaml.safe_dump(read_tree(FILE).values, sort_keys=True, allow_unicode=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4c76fa363f2f615c"
