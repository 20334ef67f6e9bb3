"""Figures: drawn whole, readable on any page; of studies with colours, markers and their axes."""

import math
from base64 import b64decode
from itertools import pairwise

import pytest
from matplotlib.image import imread

from highrank_plugins.common.formatting import Bars, Lines
from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.reports import plots
from highrank_plugins.results.comparison import compare_records
from tests.cli import highrank
from tests.results.test_comparison import change, write

CURVES = Lines({"one": ([1, 2, 3], [1, 10, 100]), "&": ([1, 3], [2, 2])}, "A < B", ("x", "y"))
SHARES = Bars({"mean": {"a": 1.0, "b": 4.0}, "top": {"a": 2.0, "b": 3.0}}, "Shares", ("k", "share"))


def axes_of(figure):
    (plot,) = plots.rendered(figure).axes
    return plot


def legend(plot):
    return [text.get_text() for text in plot.get_legend().texts]


def test_curves_have_their_values_and_the_requested_scale():
    figure = Lines(CURVES.series, "t", ("x", "y"), "loglog", dashed=("&",), ends=(1, 200))
    plot = axes_of(figure)
    one, other = plot.lines
    assert one.get_ydata().tolist() == [1, 10, 100]
    assert (one.get_linestyle(), other.get_linestyle()) == ("-", "--")
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "log")
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("x", "y")
    assert legend(plot) == ["one", "&"] and plot.get_ylim() == (1, 200)
    kind, _, content = plots.data_uri(CURVES).partition(",")  # on a page
    assert kind == "data:image/svg+xml;base64" and b"A &lt; B" in b64decode(content)
    assert plots.data_uri(CURVES) == f"{kind},{content}"


def test_bars_are_as_high_as_their_values_and_side_by_side():
    levels = {"1/K": 2.0}
    plot = axes_of(Bars(SHARES.groups, "t", ("k", "share"), "log", ends=(1, None), levels=levels))
    assert [bar.get_height() for bar in plot.patches] == [1.0, 4.0, 2.0, 3.0]
    starts = sorted(bar.get_x() for bar in plot.patches)
    widths = {round(bar.get_width(), 9) for bar in plot.patches}
    assert widths == {0.4} and all(b - a >= 0.4 - 1e-9 for a, b in pairwise(starts))
    assert plot.get_ylim()[0] == 1 and plot.lines[-1].get_ydata()[0] == 2
    assert legend(plot) == ["1/K", "mean", "top"] and legend(axes_of(SHARES)) == ["mean", "top"]
    plot = axes_of(Bars({"": {f"{i:,}": 1.0 for i in range(1000, 1060)}}, "t", ("x", "y")))
    assert len(plot.patches) == 60 and len(plot.get_xticks()) <= plots.MOST_LABELS


def test_values_that_are_not_finite_leave_gaps():
    for value in (math.inf, math.nan):
        plots.rendered(Bars({"": {"a": 1.0, "b": value}}, "t", ("x", "y"))).canvas.draw()
        curve = Lines({"c": ([1, 2, 3], [1.0, value, 2])}, "t", ("x", "y"), "log")
        plots.rendered(curve).canvas.draw()


# system → perplexity, rank, speed and components
SYSTEMS = {"softmax": (60, 10, 900, 1), "mos_k2": (58, 400, 500, 2), "mos_k5": (57, 900, 300, 5),
           "moc_k2": (61, 12, 700, 2)}  # fmt: skip


@pytest.fixture
def records(tmp_path):
    return [
        write(
            tmp_path / f"{system}-{seed}.json", 0, seed, train={"words_per_second": speed},
            metrics={"test_perplexity": perplexity + seed / 10, "test_rank": rank + seed},
            config={"train": {"head_components": components, "arch": system}},
        )
        for system, (perplexity, rank, speed, components) in SYSTEMS.items()
        for seed in (1, 2)
    ]  # fmt: skip


def test_layers_have_colours_and_variants_markers_which_values_of_an_option_share():
    names = {*head_names(), *pointwise_names()} & plots.COLOURS.keys()
    assert {"softmax", "mos", "moc", "mixtape", "plif", "gss", "sigsoftmax"} == names
    assert len({*plots.COLOURS.values()}) == len(plots.COLOURS)
    layers = {"mos_k15": "mos", "small/plif": "plif", "mos_sigsoftmax": "mos"}
    assert {name: plots.layer_of(name) for name in layers} == layers
    assert plots.colour_of("ours") not in plots.COLOURS.values()
    names = ["mos", "mos_scaled", "mixtape", "mixtape_scaled", "moc_k2", "moc_k15"]
    found = plots.markers_of(names)
    assert found["mos"] == found["mixtape"] != found["mos_scaled"] == found["mixtape_scaled"]
    assert found["moc_k2"] == found["moc_k15"]


def test_rank_and_metric_are_plotted_over_an_option(records, tmp_path):
    rank, perplexity = plots.study_figures(compare_records(records), "head_components")
    assert rank.scale == "log" and perplexity.scale == "linear"
    assert rank.axes == ("components K", "rank of the log-probabilities (Press)")
    assert perplexity.connected == [["mos_k2", "mos_k5"]]
    assert legend(axes_of(perplexity)) == [
        "moc_k2",
        "softmax",
        "mos",
    ]  # by height; a curve has its layer
    (scatter,) = plots.study_figures(compare_records(records), "test_rank")
    assert scatter.scale == "logx" and scatter.axes[1] == "test perplexity (lower is better)"
    assert legend(axes_of(scatter)) == ["moc_k2", "softmax", "mos_k2", "mos_k5"]
    for path in records[:2]:  # a baseline without the option is a line across
        change(path, config={"train": {"arch": "softmax"}})
    mine = [path.rename(path.with_name(f"a$b-{n}.json")) for n, path in enumerate(records[-2:])]
    assert legend(axes_of(plots.study_figures(compare_records(mine), "test_rank")[0])) == [r"a\$b"]
    records[-2:] = mine
    rank, perplexity = plots.study_figures(compare_records(records), "head_components")
    assert "softmax" not in perplexity.groups and rank.levels == {"softmax": 11.5}
    assert perplexity.levels == {"softmax": pytest.approx(60.15)}
    plots.draw(tmp_path / "new" / "a.svg", rank, perplexity)
    assert "<!-- softmax -->" in (tmp_path / "new" / "a.svg").read_text()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.svg"]


def test_plots_are_written_and_an_unknown_axis_is_refused(records, tmp_path):
    words = ["compare", *map(str, records), "--plot"]
    for name, x in {"a.png": "words_per_second", "b.svg": "head_components"}.items():
        done = highrank(*words, str(tmp_path / name), "--x", x)
        assert done.exit_code == 0, done.output
    assert imread(tmp_path / "a.png")[..., :3].max(axis=2)[0, 0] == 1  # opaque and white
    assert "components K" in (tmp_path / "b.svg").read_text()
    done = highrank(*words, str(tmp_path / "c.png"), "--x", "head_component")
    assert done.exit_code == 2 and "--x head_component: expected parameters" in done.output
