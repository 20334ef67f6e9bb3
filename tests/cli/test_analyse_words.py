"""`highrank measure word-similarity`, `unargmaxable`, `compare`: what a model knows of words."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.cli import highrank, refused
from tests.cli.test_analyse import analyse, invoke, whole
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.recipes.synthetic import experiment
from tests.tasks.built import build


@pytest.fixture(scope="module")
def softmax(stream_data, tmp_path_factory):
    built = build(stream_data)
    return write_checkpoint(tmp_path_factory.mktemp("softmax") / "a.pt", built), stream_data


def test_word_similarity_equals_the_rank_correlation(softmax, tmp_path):
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


def test_bad_pairs_and_words_without_vectors_are_refused(softmax, tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("cat cow much\n")
    words = ["measure", "word-similarity", *softmax, "--benchmark", file]
    refused("pairs.txt:1: expected two words and a number", *words)
    file.write_text("cow pig 3\n")
    done = highrank(*words)
    found = json.loads(done.stdout)
    assert found["benchmarks"][str(file)] == {"spearman": None, "used": 0, "missing": 1}
    assert "pairs.txt: no correlation; 1 of 1 pairs have a word without a vector" in done.stderr


def test_unargmaxable_names_planted_words(mt_data, tmp_path):
    built = small.build(mt_data, "transformer_softmax")
    path = write_checkpoint(tmp_path / "a.pt", built)
    state = torch.load(path, weights_only=True)
    weight = state["model"]["decoder.output_projection.weight"]
    weight[10] = weight[11:40].mean(0)  # inside the hull of others
    torch.save(state, path)
    found = analyse(tmp_path, "unargmaxable", path, mt_data)
    word = built.task.target_dictionary[10]
    assert found["classes"] == [10] and found["words"] == [word] and found["count"] == 1


def test_unargmaxable_does_not_apply_to_mixtures(mos):
    done = invoke("unargmaxable", *mos)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert "not applicable" in found["reason"]
    assert found["words"] is None


def test_compare_finds_the_tokens_that_one_model_predicts_better(softmax, mos, tmp_path):
    """Compare with the log-probabilities of both along the text."""
    output, contexts = tmp_path / "out.json", tmp_path / "contexts.txt"
    words = [softmax[0], *mos, "--margin", 0.01, "--count", 5, "--words", 3, "--segment", 7]
    done = experiment("disagreements", *words, "--output", output, "--contexts", contexts)
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text())
    losses = []
    for path in (softmax[0], mos[0]):
        log_probs, _, target, _ = whole(path, mos[1], tokens=None)
        losses.append(-log_probs.gather(1, target[:, None])[:, 0].double())
    margin = losses[1] - losses[0]
    assert found["tokens"] == len(margin) and found["found"] == int((margin >= 0.01).sum())
    assert found["mean_margin"] == pytest.approx(float(margin.mean()), abs=1e-6)
    assert found["share"] == pytest.approx(float((margin > 0).double().mean()))
    best = margin.topk(5)
    shown = found["disagreements"]
    assert [one["margin"] for one in shown] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert [one["position"] for one in shown] == best.indices.tolist()
    best, other = shown[0]["first"], shown[0]["second"]
    assert len(best["top"]) == 5 and best["nll"] < other["nll"]
    lines = contexts.read_text().splitlines()
    assert len(lines) == 5 and "</s>" not in contexts.read_text()
    done = experiment("contexts", *mos, contexts, "--split", "test")
    assert done.exit_code == 0, done.output


def test_models_and_tokens_that_cannot_be_compared_are_named(softmax, mos, mt_data, tmp_path):
    other = write_checkpoint(tmp_path / "other.pt", small.build(mt_data, "transformer_softmax"))
    done = experiment("disagreements", softmax[0], other, softmax[1])
    assert done.exit_code == 2, done.output
    done = experiment("disagreements", softmax[0], *mos, "--margin", "nan")
    assert done.exit_code == 2 and "--margin nan: must be a number of nats" in done.output
    file, every = tmp_path / "contexts.txt", ["--margin=-100", "--count", 1000]
    done = experiment("disagreements", softmax[0], *mos, *every, "--contexts", file)
    assert done.exit_code == 0
    assert f"{file}: the first word of the text has no context" in done.output


def test_saturation_follows_the_updates(stream_data, tmp_path):
    """Pass a flat spectrum, a known one and an untrained matrix, out of order."""
    built = build(stream_data)
    path = write_checkpoint(tmp_path / "first.pt", built)
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


def test_a_matrix_that_is_not_finite_is_named(stream_data, tmp_path):
    path = write_checkpoint(tmp_path / "diverged.pt", build(stream_data))
    state = torch.load(path, weights_only=True)
    state["model"]["decoder.output_projection.weight"][3, 1] = math.nan
    torch.save(state, path)
    said = "diverged.pt: the vocabulary matrix is not fin"
    refused(said, "measure", "saturation", path, stream_data)
