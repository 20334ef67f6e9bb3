"""`highrank compare`: significance; spectra of several models; what a model knows of words."""

import csv
import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from highrank_plugins.analysis.spectrum import spectrum
from highrank_plugins.analysis.statistics import holm, pearson, student_t, welch_t
from highrank_plugins.reports import plots
from tests.cli import highrank, refused
from tests.cli.test_analyse import analyse, invoke
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.tasks.built import build

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


@pytest.fixture(scope="module")
def softmax(stream_data, tmp_path_factory):
    built = build(stream_data)
    return write_checkpoint(tmp_path_factory.mktemp("softmax") / "a.pt", built), stream_data


def test_word_similarity_is_the_rank_correlation_of_words_with_vectors(softmax, tmp_path):
    pairs = [("Cat", "dog"), ("cat", "house"), ("tree", "house"), ("red", "under")]
    weight = torch.load(softmax[0], weights_only=True)["model"]["decoder.output_projection.weight"]
    words = [line.split()[0] for line in (softmax[1] / "dict.txt").read_text().splitlines()]
    rows = {word: row for row, word in enumerate(words, 4)}
    cosines = [
        cosine_similarity(weight[rows[a.lower()]], weight[rows[b]], 0).item() for a, b in pairs
    ]
    first, second = tmp_path / "same.txt", tmp_path / "opposite.txt"
    rated = [(*pair, cosine) for pair, cosine in zip(pairs, cosines, strict=True)]
    first.write_text("".join(f"{a}\t{b}\t{c}\n" for a, b, c in rated))
    second.write_text("".join(f"{a} {b} {-c}\n" for a, b, c in rated) + "cat cow 1\n")
    both = ["--benchmark", first, "--benchmark", second]
    found = analyse(tmp_path, "word-similarity", *softmax, *both)
    assert found["benchmarks"] == {
        str(first): {"spearman": pytest.approx(1), "used": 4, "missing": 0},
        str(second): {"spearman": pytest.approx(-1), "used": 4, "missing": 1},
    }
    file = tmp_path / "pairs.txt"
    words = ["measure", "word-similarity", *softmax, "--benchmark", file]
    file.write_text("cow pig 3\n")
    done = highrank(*words)
    found = json.loads(done.stdout)
    assert found["benchmarks"][str(file)] == {"spearman": None, "used": 0, "missing": 1}
    said = "pairs.txt: no correlation; 0 pairs used, 1 have a word without a vector"
    assert said in done.stderr


def test_unargmaxable_names_planted_words_unless_the_layer_is_a_mixture(mt_data, mos, tmp_path):
    built = small.build(mt_data, "transformer_softmax")
    path = write_checkpoint(tmp_path / "a.pt", built)
    state = torch.load(path, weights_only=True)
    weight = state["model"]["decoder.output_projection.weight"]
    weight[10] = weight[11:40].mean(0)  # inside the hull of others
    torch.save(state, path)
    found = analyse(tmp_path, "unargmaxable", path, mt_data)
    word = built.task.target_dictionary[10]
    assert found["classes"] == [10] and found["words"] == [word] and found["count"] == 1
    done = invoke("unargmaxable", *mos)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert not found["applicable"] and "not applicable" in found["reason"]
    assert found["words"] is None


def test_saturation_follows_the_updates(stream_data, tmp_path):
    """Pass a flat spectrum, a known one and an untrained matrix, out of order; then NaN."""
    path = write_checkpoint(tmp_path / "first.pt", build(stream_data))
    state = torch.load(path, weights_only=True)
    weight = state["model"]["decoder.output_projection.weight"]
    basis = torch.linalg.qr(torch.randn_like(weight))[0]
    scales = torch.arange(weight.size(1), 0, -1.0)
    for name, updates, values in [("flat", 30, torch.ones_like(scales)), ("falls", 20, scales)]:
        state["model"]["decoder.output_projection.weight"].copy_(basis * values)
        state["optimizer_history"][-1]["num_updates"] = updates
        torch.save(state, tmp_path / f"{name}.pt")
    files = [tmp_path / f"{name}.pt" for name in ("flat", "first", "falls")]
    found = analyse(tmp_path, "saturation", *files, stream_data)
    first, falls, flat = found["checkpoints"]
    order = [(Path(one["checkpoint"]).stem, one["updates"]) for one in (first, falls, flat)]
    assert order == [("first", 1), ("falls", 20), ("flat", 30)]
    assert flat["flat_divergence"] == pytest.approx(0, abs=1e-6)
    share = (scales / scales.sum()).double()
    entropy = -(share * share.log()).sum().item()
    assert falls["spectral_entropy"] == pytest.approx(entropy, abs=1e-6)
    assert falls["flat_divergence"] == pytest.approx(math.log(len(scales)) - entropy, abs=1e-6)
    assert falls["largest"] == pytest.approx(len(scales), rel=1e-6)
    state["model"]["decoder.output_projection.weight"][3, 1] = math.nan
    torch.save(state, path)
    said = "first.pt: the vocabulary matrix is not fin"
    refused(said, "measure", "saturation", path, stream_data)
