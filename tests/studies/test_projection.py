"""A difference is projected as a line in log compute, and a file of points is judged by it."""

from math import exp, hypot, log, sqrt
from pathlib import Path
from statistics import NormalDist, variance

import numpy as np
import pytest
import yaml
from scipy.special import digamma
from scipy.stats import f as f_distribution

from highrank_plugins.analysis.projection import project, size_difference
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.ladder_table import judge, of_points
from tests.cli import highrank

MARIN = Path(__file__).parents[2] / "docs" / "howto" / "marin_softcap.yaml"


def marin() -> tuple[list[float], list[float], list[float]]:
    points = yaml.safe_load(MARIN.read_text())["points"]
    rows = [(float(at), of["softcap"], of["softmax"]) for at, of in points.items()]
    return tuple(map(list, zip(*rows, strict=True)))


def test_the_published_gain_of_a_softcap_is_not_decided_a_decade_above():
    done = highrank("ladder", str(MARIN))
    assert done.exit_code == 0
    assert done.output.splitlines()[-1] == (
        "softcap helps at 2.19e+17, 1.7e+18, 9e+18; not decided at 2.83e+19; at 2.8e20 between "
        "-0.0030 and +0.0044: not decided."
    )
    computes, own, base = marin()
    slope = np.polyfit(np.log10(computes), np.subtract(own, base), 1)[0]
    assert 0.0045 < slope < 0.0046  # nats per decade: the gain shrinks
    ladder = read_ladder(MARIN)
    table, (figure,) = judge(ladder, of_points(ladder))
    x, y = figure.series["line"]
    assert x[0] == 2.19e17 and x[-1] == pytest.approx(2.83e20)
    assert (
        y[-1] == pytest.approx(table.rows[-1][-1].values["softcap"]) == pytest.approx(7.1e-4, 0.01)
    )
    assert figure.series["lower end"][1][-1] < y[-1] < figure.series["upper end"][1][-1]


def curve(computes: list[float], losses: list[float], floor: float, at: float):
    """Return floor + A · at^−α of the least squares of logarithms, and how each loss moves it."""
    x, above = np.log(np.array(computes) / at), np.array(losses) - floor
    share = np.linalg.solve([[len(x), x.sum()], [x.sum(), x @ x]], [np.ones_like(x), x])[0]
    end = exp(share @ np.log(above))
    return floor + end, end * share / above


def test_the_published_verdict_on_a_softcap_was_that_of_other_points():
    """marin#5224: +0.0021 at 1e21, from six optima of the baseline and four runs of the softcap.

    The optima are those of experiments/grug/moe/README.md. At the same four points the sign turns,
    and with a deviation of 0.001 between seeds nobody can say which sign it has.
    """
    optima = [1e18, 3e18, 1e19, 3e19, 1e20, 3e20], [3.5273, 3.3398, 3.1494, 3.0066, 2.8509, 2.7222]
    computes, own, base = marin()
    softcap, moves = curve(computes, own, 1.6, 1e21)
    other, _ = curve(*optima, 1.6, 1e21)
    same, base_moves = curve(computes, base, 1.6, 1e21)
    assert softcap - other == pytest.approx(0.0024, abs=5e-5)
    assert softcap - same == pytest.approx(-0.0004, abs=5e-5)
    error = 0.001 * hypot(np.linalg.norm(moves), np.linalg.norm(base_moves))
    worse = NormalDist().cdf((softcap - same) / error)
    assert worse == pytest.approx(0.39, abs=0.01)
    signs = {
        np.sign(curve(computes, own, f, 1e21)[0] - curve(computes, base, f, 1e21)[0])
        for f in (1.4, 0.6)
    }
    assert signs == {-1, 1}  # of the floor, too


def test_a_line_by_hand():
    """Equal seeds and deviations: ordinary least squares, with the error of its textbook."""
    computes, gains = [1e3, 1e4, 1e5, 1e6], [-0.02, -0.01, 0.001, 0.009]
    noise = np.array([-0.001, 0.0, 0.001])
    steps = [
        size_difference(at, gain + noise, noise) for at, gain in zip(computes, gains, strict=True)
    ]
    x = np.log10(computes)
    slope, level = np.polyfit(x, gains, 1)
    found = project(steps, 1e7)
    assert found.slope == pytest.approx(slope) and found.difference == pytest.approx(
        7 * slope + level
    )
    spread = (x - x.mean()) @ (x - x.mean())
    error = sqrt(variance(noise) * 2 / 3 * (1 / 4 + (7 - x.mean()) ** 2 / spread))
    # coefficients of -0.5, 0, 0.5 and 1, of 4 degrees of freedom each: 1.5² / (1.125 / 4) = 8
    assert found.ends[1] - found.difference == pytest.approx(error * 2.306004, rel=1e-6)
    unbiased = variance(noise) * exp(log(2) - digamma(2))  # its logarithm is, of 4 degrees
    ratio = ((gains - slope * x - level) ** 2).sum() / 2 / (unbiased * 2 / 3)
    assert found.p_misfit == pytest.approx(f_distribution.sf(ratio, 2, 16))


def test_a_size_counts_as_its_seeds_do():
    computes, gains, seeds = [1e3, 1e4, 1e5, 1e6], [-0.02, -0.016, -0.008, 0.009], [30, 3, 3, 5]
    steps = [
        size_difference(at, [gain] * n, [0.0] * n, 0.01)._replace(share=2 / n)
        for at, gain, n in zip(computes, gains, seeds, strict=True)
    ]
    line = np.polyfit(np.log10(computes), gains, 1, w=np.sqrt(seeds))
    assert project(steps, 1e7).difference == pytest.approx(np.polyval(line, 7))


def test_intervals_hold_for_all_arms_together(tmp_path):
    tree = yaml.safe_load(MARIN.read_text())
    one = highrank("ladder", str(MARIN)).output
    rows = {str(at): of | {"other": of["softmax"]} for at, of in tree["points"].items()}
    (file := tmp_path / "two.yaml").write_text(yaml.safe_dump(tree | {"points": rows}))
    both = highrank("ladder", str(file)).output
    assert "Intervals: 95 %.\n" in one
    assert "Intervals: 95 %, for the 2 projected arms together." in both
    # 2.2414 deviations of a normal distribution in place of 1.96
    assert "[-0.0161, -0.0105]" in one and "[-0.0165, -0.0101]" in both


def test_a_curve_that_is_no_line_widens_its_band():
    noise = np.array([-0.001, 0.0, 0.001])
    straight, bent = (
        project(
            [size_difference(10.0**i, gain + noise, noise) for i, gain in enumerate(gains)], 1e4
        )
        for gains in ((0.0, 0.01, 0.02, 0.03), (0.0, 0.02, 0.03, 0.03))
    )
    assert straight.p_misfit > 0.99 and bent.p_misfit < 1e-4
    widths = [one.ends[1] - one.ends[0] for one in (straight, bent)]
    assert widths[1] > 5 * widths[0]


@pytest.mark.parametrize(
    ("compute", "row", "why"),
    [
        ("1.7e+18", {"softmax": 3.4}, r"points.2.19e\+17: 2.19e\+17 has softcap, and 1.7e"),
        ("9e+18", {"mos": 3.4, "softmax": 3.4}, r"points.9e\+18: 9e\+18 has mos, and 1.7e"),
        ("1.7e+18", {"softmax": 3.4, "softcap": float("nan")}, r".*1.7e\+18.softcap: .* finite"),
        ("0", {"softmax": 3.4, "softcap": 3.3}, "points.0: expected the compute of a run"),
        ("9e+18", {"softmax": 3.4, "softcap": 1e300}, r"points.9e\+18.softcap: no score.* 1e99"),
        ("", {}, "baseline: no system is named"),
    ],
)
def test_points_without_a_compute_or_with_other_arms_are_refused(tmp_path, compute, row, why):
    tree = yaml.safe_load(MARIN.read_text())
    known = tree["points"] if compute else {1: {}, 2: {}, 4: {}}
    tree["points"] = {str(at): of for at, of in known.items()} | ({compute: row} if row else {})
    (file := tmp_path / "points.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigurationError, match=rf"points.yaml:\d+: {why}"):
        read_ladder(file)
    for deviation in (1e-170, 1e300):  # whose squares are 0 and infinite
        file.write_text(
            yaml.safe_dump(yaml.safe_load(MARIN.read_text()) | {"deviation": deviation})
        )
        with pytest.raises(ConfigurationError, match=r"deviation: must lie in \[1e-30, 1e\+30\]"):
            read_ladder(file)


def test_points_of_perplexities_are_compared_in_nats(tmp_path):
    tree = yaml.safe_load(MARIN.read_text()) | {"metric": "test_perplexity"}
    rows = {1e18: (60.0, 50.0), 1.001e18: (54.0, 45.0), 1e19: (48.0, 40.0)}
    tree["points"] = {str(at): {"softmax": a, "softcap": b} for at, (a, b) in rows.items()}
    (file := tmp_path / "points.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    table, _ = judge(ladder := read_ladder(file), of_points(ladder))
    assert [row[0].text for row in table.rows] == ["1e+18", "1.001e+18", "1e+19", "projected"]
    assert [row[3].text for row in table.rows[:3]] == ["60.00", "54.00", "48.00"]
    assert [row[-1].values["softcap"] for row in table.rows] == pytest.approx([log(5 / 6)] * 4)
    for words in (["--jobs", "2"], ["--table"]):
        done = highrank("ladder", str(file), *words)
        assert done.exit_code == 2
        assert f"{words[0]}: changes nothing with a file of points; leave it out" in done.output
    tree["points"]["1e+18"]["softcap"] = 0.0
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigurationError, match=r"points.1e\+18: a perplexity is above 0"):
        read_ladder(file)


TRUTHS = {  # a gain by size; the target is 300
    "constant": lambda size: -0.004,
    "shrinks": lambda size: -0.004 * size**-0.1607,  # to -0.0016, and is no line
    "crosses": lambda size: -0.008 + 0.005 * np.log10(size),  # to +0.0044
    "grows": lambda size: -0.001 - 0.003 * np.log10(size),  # to -0.0084
    "fades": lambda size: -0.0064 * size**-0.243,  # a gain that shrinks fast, also to -0.0016
    "none": lambda size: 0.0,
}
RIGHT = {"constant": 0.8, "shrinks": 0.1, "crosses": 0.85, "grows": 0.9, "fades": 0.03}


@pytest.mark.long  # 60,000 ladders
@pytest.mark.parametrize("truth", TRUTHS)
def test_projections_have_the_wrong_sign_in_one_of_a_hundred_at_most(truth):
    """30, 3, 3 and 5 seeds at sizes 1 to 30; deviations fall from 0.0025 as size^−1/4."""
    random, draws, ends = np.random.default_rng(63), 10_000, []
    for _ in range(draws):
        steps = []
        for size, seeds in zip((1, 3, 10, 30), (30, 3, 3, 5), strict=True):
            own, base = random.normal(0, 0.0025 * size**-0.25, (2, seeds))
            steps.append(size_difference(size, own + TRUTHS[truth](size), base))
        ends.append(project(steps, 300).ends)
    low, high = np.array(ends).T
    helps, hurts = (high < 0).mean(), (low > 0).mean()
    print(f"{truth}: helps {helps:.4f}, hurts {hurts:.4f}")
    if truth == "none":
        assert 0.04 < helps + hurts < 0.06
    else:
        wrong, right = (helps, hurts) if truth == "crosses" else (hurts, helps)
        # the line through a curve that flattens ends above it
        assert wrong <= (0.02 if truth == "fades" else 0.01) and right > RIGHT[truth]
