"""Figures: drawn whole, readable on any page; of studies with colours, markers and their axes."""

from base64 import b64decode

import pytest
from matplotlib.image import imread

from highrank_plugins.common.formatting import Lines
from highrank_plugins.reports import plots
from highrank_plugins.results.comparison import compare_records
from tests.cli import highrank
from tests.results.test_comparison import change, write

CURVES = Lines({"one": ([1, 2, 3], [1, 10, 100]), "&": ([1, 3], [2, 2])}, "A < B", ("x", "y"))


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
    assert done.exit_code == 2 and "--x head_component: no record has it" in done.output
