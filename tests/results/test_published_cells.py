"""Cells of the papers that follow from other cells agree with them."""

import re

import pytest

from highrank_plugins.analysis.statistics import Summary, student_t
from highrank_plugins.common.yaml_tree import read_tree
from highrank_plugins.data.corpora.word_corpora import PTB, WIKITEXT2
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import BENCHMARKS, FILE, Published
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


@pytest.mark.parametrize("task", TASKS)
def test_p_values_of_frozen_slopes_follow_from_the_scores(task):
    frozen, learned = parthiban(task, "PLIF, frozen"), parthiban(task, "PLIF")
    p_value = student_t(ten_seeds(frozen), ten_seeds(learned)).p_value
    assert f"{p_value:.3g}" == f"{frozen.cells['p against PLIF']:.3g}"


def test_the_printed_p_of_the_matched_pair_does_not_follow_from_its_scores():
    softmax = parthiban("ptb", "softmax, 17.56M parameters")
    mos = parthiban("ptb", "MoS, 17.53M parameters")
    ours, theirs = (
        Summary(entry.scores["test ppl"], entry.deviations["test ppl"], 10)
        for entry in (mos, softmax)
    )
    assert student_t(ours, theirs).p_value == pytest.approx(0.39, abs=0.005)
    assert mos.cells["p against softmax"] == 0.62
    assert ".39" in mos.errata["p against softmax"]


def gain(task: str, source: str, softmax: str, system: str) -> float:
    """Return by how much the perplexity of a system is below that of a softmax."""
    softmax_ppl, ppl = (
        entry_of(task, name, source).scores["test ppl"] for name in (softmax, system)
    )
    return softmax_ppl - ppl


ONE = [f"{name}, {ONE_SEED}" for name in ("softmax", "SigSoftmax", "PLIF", "MoS", "MoC")]


@pytest.mark.parametrize(
    ("source", "softmax", "system", "printed"),
    [
        *(("Parthiban", ONE[0], name, name) for name in ONE[1:4]),
        ("Ganea", "softmax", "PLIF, 1e5 knots", "PLIF, gain as first reported"),
    ],
)
def test_gains_over_the_softmax_follow_from_the_scores(source, softmax, system, printed):
    cell = entry_of("ptb", printed, source).cells["gain over softmax"]
    assert gain("ptb", source, softmax, system) == pytest.approx(cell, abs=1e-9)


def test_the_erratum_about_the_gain_of_mos_names_the_gain_of_moc():
    erratum = parthiban("ptb", ONE[3]).errata["gain over softmax"]
    assert f"{gain('ptb', 'Parthiban', ONE[0], ONE[4]):.2f} is MoC's" in erratum


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


@pytest.mark.parametrize("task", ["ptb", "one_billion_word"])
def test_times_of_an_instance_are_milliseconds_by_the_times_of_batches(task):
    """A batch of N instances takes N times an instance's time, within a factor of three."""
    instances = {"ptb": 48, "one_billion_word": 20}[task]
    for entry in published(task):
        for part in ("layer", "network"):
            cell = f"ms/instance ({part})"
            if cell in entry.cells:
                batch = entry.cells[f"ms/batch ({part})"] / instances
                assert 1 / 3 < entry.cells[cell] / batch < 3
                assert "the table says seconds" in entry.errata[cell]


@pytest.mark.parametrize(
    ("task", "without", "with_plif", "knots"),
    [
        ("ptb", "MoS, K = 15, d = 400", "MoS with PLIF, 1e6 knots", 1_000_000),
        ("wikitext2", "softmax", "PLIF, 1e5 knots", 100_000),
    ],
)
def test_ganea_et_al_count_two_parameters_for_a_knot(task, without, with_plif, knots):
    few, many = (entry_of(task, name, "Ganea") for name in (without, with_plif))
    assert many.parameters - few.parameters == pytest.approx(2 * knots, abs=0.05e6)
    assert "for each knot" in many.errata["parameters"]


@pytest.mark.parametrize(("task", "said"), [("ptb", 2.8), ("one_billion_word", 6.25)])
def test_gains_that_the_mixtape_paper_names_are_over_the_softmax(task, said):
    found = gain(task, "Yang et al. 2019", "softmax", "Mixtape")
    assert found == pytest.approx(said, abs=0.05)
    assert str(said) in entry_of(task, "Mixtape", "Yang et al. 2019").errata["test ppl"]


# task → the MoS and the Mixtape of Yang et al. 2019
PAIRS = {
    "ptb": ("MoS, K = 15", "Mixtape"),
    "one_billion_word": ("MoS, K = 7", "Mixtape"),
    "wmt14_en_de": ("MoS, K = 9", "Mixtape, K = 4, 0.2B parameters"),
    "wmt14_en_fr": ("MoS, K = 9", "Mixtape, K = 4, 0.8B parameters"),
}


def mixtape_times(task: str, cell: str) -> tuple[float, float, float]:
    """Return the times of softmax, MoS and Mixtape."""
    found = {
        entry.system: entry.cells[cell]
        for entry in published(task)
        if "Yang et al. 2019" in entry.source and cell in entry.cells
    }
    mos, mixtape = PAIRS[task]
    return found["softmax"], found[mos], found[mixtape]


def test_the_speed_that_the_mixtape_paper_claims_follows_from_its_tables():
    """Find 3.5 to 10.5 times MoS's speed, and a network 20 to 34 % slower, 60 % on 1B."""
    ratios = []
    for task in PAIRS:
        _, mos, mixtape = mixtape_times(task, "ms/instance (layer)")
        ratios.append(mos / mixtape)
    assert min(ratios) == pytest.approx(3.5, abs=0.05)
    assert max(ratios) == pytest.approx(10.5, rel=0.02)  # 10.7 by the printed times
    slower = {}
    for task in PAIRS:
        softmax, _, mixtape = mixtape_times(task, "ms/instance (network)")
        slower[task] = mixtape / softmax - 1
    assert slower.pop("one_billion_word") == pytest.approx(0.60, abs=0.02)
    assert min(slower.values()) == pytest.approx(0.20, abs=0.01)
    assert max(slower.values()) == pytest.approx(0.34, abs=0.01)


@pytest.mark.parametrize("task", TASKS)
def test_every_benchmark_has_a_correlation_and_missing_pairs(task):
    missing = entry_of(task, "pairs of words that the corpus lacks", "Parthiban").cells
    assert missing.keys() == {f"missing pairs {name}" for name in BENCHMARKS.values()}
    assert parthiban(task, f"MoC, {ONE_SEED}").similarity.keys() == set(BENCHMARKS.values())


def test_mos_costs_two_to_five_times_a_softmax_in_ganeas_table():
    for task, mos, ratio in (
        ("ptb", "MoS, K = 15, d = 400", 2.5),
        ("wikitext2", "MoS, as Yang et al. 2018 have it", 4.6),
    ):
        times = [entry_of(task, name, "Ganea").cells["s/epoch"] for name in (mos, "softmax")]
        assert times[0] / times[1] == pytest.approx(ratio, abs=0.05)


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
    used = {kind for task in (*PAIRS, *TASKS, "text8", "switchboard")
            for entry in published(task) for kind in entry.scores}  # fmt: skip
    assert used == set(KINDS)
