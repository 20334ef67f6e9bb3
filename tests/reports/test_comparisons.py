"""Test the figures of studies in reports/plots.py: colours, markers, what stands along an axis."""

import json

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.reports.plots import (
    COLOURS,
    colour_of,
    draw,
    layer_of,
    markers_of,
    rendered,
    study_figures,
)
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


def legend(figure):
    (plot,) = rendered(figure).axes
    return [text.get_text() for text in plot.get_legend().texts]


def test_rank_and_metric_are_plotted_over_an_option(records):
    rank, perplexity = study_figures(compare_records(records), "head_components")
    assert rank.scale == "log" and perplexity.scale == "linear"
    assert rank.axes == ("components K", "rank of the log-probabilities (Press)")
    assert perplexity.connected == [["mos_k2", "mos_k5"]]
    assert legend(perplexity) == ["moc_k2", "softmax", "mos"]  # by height; a curve has its layer
    (scatter,) = study_figures(compare_records(records), "test_rank")
    assert scatter.scale == "logx" and scatter.axes[1] == "test perplexity (lower is better)"
    assert legend(scatter) == ["moc_k2", "softmax", "mos_k2", "mos_k5"]


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
    assert done.exit_code == 2 and "--x head_component: expected parameters" in done.output
