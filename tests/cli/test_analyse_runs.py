"""`highrank compare`: significance, and spectra of several models."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch

from highrank_plugins.analysis.spectrum import spectrum
from highrank_plugins.analysis.statistics import holm, pearson, student_t, welch_t
from highrank_plugins.reports import plots
from tests.cli import highrank, refused
from tests.cli.test_analyse import analyse, invoke

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def write_record(path, rank, perplexity, c=None, k=None, seed=1):
    train = {} if c is None else {"head_gss_c": c, "head_gss_k": k}
    metrics = {"test_rank": rank, "test_perplexity": perplexity}
    record = {"metrics": metrics, "config": {"train": train}, "seeds": [seed]}
    path.write_text(json.dumps(record))
    return path


def compare(*words):
    return highrank("compare", *words)


def table_of(*words):
    """Return the rows of the CSV by their first column, and the notes."""
    lines = compare(*words, "--format", "csv").output.splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row[next(iter(row))]: row for row in rows}, [x for x in lines if x.startswith("#")]


def test_numbers_are_tested_with_the_direction_of_their_metric_and_give_published_p_values():
    rows, _ = table_of("Softmax=57.08:.10:10", "PLIF=56.81:.11:10", "MoS=54.88:.26:10")
    p = [float(rows[name]["p"]) for name in ("PLIF", "MoS")]
    assert p[0] == pytest.approx(2.19e-5, rel=0.2) and p[1] == pytest.approx(2.02e-15, rel=0.2)
    assert [float(rows[name]["p Holm"]) for name in ("PLIF", "MoS")] == holm(p)
    a, b = [3.0, 4.0, 5.5], [16.0, 17.0, 19.0]
    words = ["a=3,4,5.5", "b=16,17,19", "--metric", "sacrebleu"]
    for test, function in (("student", student_t), ("welch", welch_t)):
        rows, _ = table_of(*words, "--test", test)
        assert float(rows["b"]["p"]) == pytest.approx(function(b, a).p_value)
        assert rows["b"]["seeds"] == "3" and float(rows["b"]["difference"]) > 0
    assert "| **17.33 ± 1.53** |" in compare(*words).output
    assert "b is better than a (p < 0.05 after" in compare(*words).output.splitlines()[-1]
    assert "b is worse than a" in compare(*words[:2], "--metric", "test_perplexity").output
    assert "Nothing is bold" in compare(*words[:2]).output
    record = RECORDS / "multi30k_small" / "mos-1.json"
    words = [record, "--metric", "sacrebleu"]
    assert "no system is named softmax. Choose" in compare(*words).output
    assert "no system" not in compare(*words, "--baseline", "mos").output


def correlated(*words):
    note = compare(*words).output.splitlines()[-1]
    r, p = re.search(r"r = (\S+), p = (\S+)\.", note).groups()
    return float(r), float(p), int(re.search(r"over (\d+) systems", note)[1])


def test_runs_of_one_configuration_are_one_point_of_a_correlation_whatever_their_names():
    studies = {"ptb_small": (7, -0.79), "multi30k_small": (10, -0.08)}
    for study, expected in studies.items():
        records = sorted((RECORDS / study).glob("*.json"))
        quality = "test_perplexity" if study == "ptb_small" else "sacrebleu"
        r, _, n = correlated(*records, "--y", quality)
        assert (n, r) == pytest.approx(expected, abs=0.006)
        rows, _ = table_of(*records, "--y", quality)
        assert len(rows) == n and "softmax" in rows
    studies = ("ptb_components/softmax", "ptb_gates/softmax", "ptb_components/mos_k5",
               "ptb_components/moc_k5", "ptb_small/softmax", "ptb_small/mos")  # fmt: skip
    records = [RECORDS / f"{name}-{seed}.json" for name in studies for seed in (1, 2, 3)]
    assert correlated(*records, "--y", "test_perplexity") == (-0.99, 0.0012, 5)


def test_a_correlation_is_computed_from_records_restricted_to_a_range_and_drawn(
    tmp_path, monkeypatch
):
    values = [(10, 60.0), (200, 58.0), (3000, 57.9), (90, 61.0)]
    records = [write_record(tmp_path / f"{n}.json", *pair) for n, pair in enumerate(values)]
    words = [*records, "--y", "test_perplexity"]
    for number, more in ((4, []), (3, ["--within", "57,60"])):
        want = pearson(*zip(*values[:number], strict=True))
        found = (want.r, want.p_value, number)
        assert correlated(*words, *more) == pytest.approx(found, rel=0.01)
    for more, message in (
        (["--within", "57.95,60"], "2 systems have test_perplexity within 57.95,60: a correlation"),
        (["--within", "60,57"], "--within 60,57: expected LOW,HIGH with LOW below HIGH"),
        (["--within", "60"], "expected LOW,HIGH"),
    ):
        refused(message, "compare", *words, *more)
    drawn = []
    monkeypatch.setattr(plots, "draw", lambda path, figure: drawn.append(figure))
    assert compare(*words, "--plot", tmp_path / "a.svg").exit_code == 0
    assert list(drawn[0].groups.values()) == [[pair] for pair in values]
    assert drawn[0].title == "test perplexity over rank of the log-probabilities (Press)"


def write_spectrum(path, matrix):
    found = spectrum([matrix], torch.float64)
    values = {
        "contexts": matrix.size(0), "words": matrix.size(1), "dtype": "float64",
        "press_rank": found.press_rank(), "effective_rank": {"0.001": 2}, "spectral_entropy": 0.5,
        "singular_values": found.values.tolist(),
    }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
    return path


def test_spectra_of_several_models_have_distinct_names_and_are_drawn_as_in_the_papers(
    tmp_path, monkeypatch
):
    low = torch.randn(20, 3, dtype=torch.float64) @ torch.randn(3, 8, dtype=torch.float64)
    matrices = {"softmax": low, "mos": torch.randn(20, 8, dtype=torch.float64)}
    for place, named in (("{}.json", "{}"), ("{}/a.json", "{}/a")):
        files = [write_spectrum(tmp_path / place.format(n), m) for n, m in matrices.items()]
        models = analyse(tmp_path, "spectra", *files)["models"]
        ranks = [(model["name"], model["press_rank"], model["contexts"]) for model in models]
        assert ranks == [(named.format("softmax"), 3, 20), (named.format("mos"), 8, 20)]
        assert "singular_values" not in models[0]
    refused("a.json is given twice", "analyse", "spectra", files[0], files[0])
    drawn = []
    monkeypatch.setattr(plots, "draw", lambda path, figure: drawn.append(figure))
    file = write_spectrum(tmp_path / "a.json", torch.diag(torch.tensor([4.0, 1, 2, 1])).double())
    for words in ([], ["--linear", 3], ["--curve", "cumulative"]):
        assert invoke("spectra", file, *words, "--plot", tmp_path / "a.svg").exit_code == 0
    curves = [([*x], y) for figure in drawn for x, y in figure.series.values()]
    assert curves[0] == ([1, 2, 3, 4], [1, 0.5, 0.25, 0.25])
    assert curves[1] == ([1, 2, 3], [1, 0.5, 0.25])
    assert curves[2] == ([0.25, 0.25, 0.5, 1], [0.25, 0.5, 0.75, 1])
    assert [figure.scale for figure in drawn] == ["loglog", "linear", "linear"]
    words = ["analyse", "spectra", file, "--linear", 3, "--curve", "cumulative"]
    refused("--linear draws relative values", *words)
    for text in ("", "[]", '{"singular_values": []}', '{"press_rank": 3}'):
        file.write_text(text)
        refused("a.json: not a result of highrank measure spectrum", "analyse", "spectra", file)
