"""`highrank measure word-similarity`, `unargmaxable`: what a model knows of words."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.cli import highrank, refused
from tests.cli.test_analyse import analyse, invoke
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.tasks.built import build


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
    file.write_text("cat cow much\n")
    words = ["measure", "word-similarity", *softmax, "--benchmark", file]
    refused("pairs.txt:1: expected two words and a number", *words)
    file.write_text("cow pig 3\n")
    done = highrank(*words)
    found = json.loads(done.stdout)
    assert found["benchmarks"][str(file)] == {"spearman": None, "used": 0, "missing": 1}
    assert "pairs.txt: no correlation; 1 of 1 pairs have a word without a vector" in done.stderr


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
    for name, updates, spectrum in [("flat", 30, torch.ones_like(scales)), ("falls", 20, scales)]:
        state["model"]["decoder.output_projection.weight"].copy_(basis * spectrum)
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
