"""Test reports/style.py and study_plots.py: colours, markers, labels apart, the frontier."""

import itertools
import json

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.reports.plots import draw
from highrank_plugins.reports.study_plots import study_figures
from highrank_plugins.reports.style import COLOURS, colour_of, layer_of, markers_of, place_labels
from highrank_plugins.results.comparison import compare_records


def write(folder, system, seed, metrics, speed, components):
    record = {
        "metrics": metrics,
        "config": {"train": {"head_components": components, "arch": system}},
        "seeds": [seed],
        "train": {"updates": 1, "words_per_second": speed},
        "hardware": {"cores": 1},
        "versions": {"torch": "2"},
        "git": None,
    }
    path = folder / f"{system}-{seed}.json"
    path.write_text(json.dumps(record))
    return path


@pytest.fixture
def records(tmp_path):
    made = {"softmax": (60, 10, 900, 1), "mos_k2": (58, 400, 500, 2), "mos_k5": (57, 900, 300, 5)}
    made["moc_k2"] = (61, 12, 700, 2)
    return [
        write(
            tmp_path,
            system,
            seed,
            {"test_perplexity": perplexity + seed / 10, "test_rank": rank + seed},
            speed,
            components,
        )
        for system, (perplexity, rank, speed, components) in made.items()
        for seed in (1, 2)
    ]


def test_every_layer_has_a_colour_of_its_own():
    names = {*head_names(), *pointwise_names()} & COLOURS.keys()
    assert {"softmax", "mos", "moc", "mixtape", "plif", "gss", "sigsoftmax"} == names
    assert len({*COLOURS.values()}) == len(COLOURS)
    assert [layer_of(name) for name in ("mos_k15", "small/plif", "mos_sigsoftmax")] == [
        "mos",
        "plif",
        "mos",
    ]
    assert colour_of("ours") not in COLOURS.values()


def test_variants_have_markers_and_values_of_an_option_share_one():
    found = markers_of(["mos", "mos_scaled", "mixtape", "mixtape_scaled", "moc_k2", "moc_k15"])
    assert found["mos"] == found["mixtape"] != found["mos_scaled"] == found["mixtape_scaled"]
    assert found["moc_k2"] == found["moc_k15"]


def test_no_label_overlaps_another_one_or_a_point():
    plot = Figure(figsize=(7, 4.5)).subplots()
    places = {f"system_{n}": (n / 20, 0.5 + n / 60) for n in range(12)}
    plot.scatter(*zip(*places.values(), strict=True))
    place_labels(plot, places)
    canvas = FigureCanvasAgg(plot.figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in plot.texts]
    assert len(boxes) == 12
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    points = plot.transData.transform(list(places.values()))
    assert not any(box.contains(*point) for box in boxes for point in points)


def test_the_frontier_has_the_systems_that_no_other_beats(records):
    (figure,) = study_figures(compare_records(records), "words_per_second")
    assert figure.frontier == ["softmax", "mos_k2", "mos_k5"]  # moc_k2 is slower and worse
    assert figure.axes == ("speed of training (words/s)", "test perplexity")
    assert figure.groups["mos_k2"] == [(500, 58.1), (500, 58.2)]


def test_rank_and_metric_are_plotted_over_an_option(records):
    rank, perplexity = study_figures(compare_records(records), "head_components")
    assert rank.scale == "log" and perplexity.scale == "linear"
    assert rank.axes == ("components K", "rank of the log-probabilities (Press)")
    assert perplexity.connected == [["mos_k2", "mos_k5"]]
    assert set(perplexity.labelled) == {"softmax", "moc_k2"}  # the legend has the curve's layer
    (scatter,) = study_figures(compare_records(records), "test_rank")
    assert scatter.scale == "logx"


def test_a_baseline_without_the_option_is_a_line_across(records, tmp_path):
    for path in records[:2]:
        record = json.loads(path.read_text())
        del record["config"]["train"]["head_components"]
        path.write_text(json.dumps(record))
    figures = study_figures(compare_records(records), "head_components")
    rank, perplexity = figures
    assert "softmax" not in perplexity.groups
    assert rank.levels == {"softmax": 11.5}
    assert perplexity.levels == {"softmax": pytest.approx(60.15)}
    draw(tmp_path / "a.svg", *figures)
    assert "<!-- softmax -->" in (tmp_path / "a.svg").read_text()


def test_plots_are_written_and_an_unknown_axis_is_refused(records, tmp_path):
    words = ["compare", *map(str, records), "--plot"]
    for name, x in {"a.png": "words_per_second", "b.svg": "head_components"}.items():
        done = CliRunner().invoke(app, [*words, str(tmp_path / name), "--x", x])
        assert done.exit_code == 0, done.output
    assert imread(tmp_path / "a.png")[..., :3].max(axis=2)[0, 0] == 1  # opaque and white
    assert "components K" in (tmp_path / "b.svg").read_text()
    done = CliRunner().invoke(app, [*words, str(tmp_path / "c.png"), "--x", "head_component"])
    assert done.exit_code == 2 and "--x head_component: expected words_per_second" in done.output


def test_the_same_figure_has_the_same_bytes(records, tmp_path):
    figures = study_figures(compare_records(records), "test_rank")
    for name in ("a.svg", "b.svg"):
        draw(tmp_path / name, *figures)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
