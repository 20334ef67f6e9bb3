"""The numbers of a card are those of the measures on what fairseq itself computes."""

import math

import pytest
import torch

from highrank_plugins.analysis.components import slope_statistics
from highrank_plugins.analysis.predictions import target_ranks
from highrank_plugins.common.files import plain
from highrank_plugins.heads import build_head
from highrank_plugins.heads.pointwise import build_pointwise
from highrank_plugins.inference.collector import Collector
from highrank_plugins.measures import find_measure
from highrank_plugins.measures.base import TextMeasure
from highrank_plugins.reports.card.page import describe_head
from tests.reports.card.made import card_of, checkpoint

TOKENS = 90


@pytest.fixture(scope="module", params=["transformer", "transformer_mos", "transformer_lm_plif"])
def case(request, mt_data, lm_data, tmp_path_factory):
    """Return a card, its model and what fairseq predicts with it."""
    data = lm_data if "_lm" in request.param else mt_data
    path, built = checkpoint(tmp_path_factory.mktemp("card"), request.param, data)
    built.text = Collector.open(path, str(data), "valid", tokens=TOKENS, device="cpu")
    found = (every[:TOKENS] for every in built.log_probs("valid"))
    return card_of(path, data, tokens=TOKENS), built, *found


def test_predictions_equal_those_of_the_whole_matrix(case):
    card, _, log_probs, target = case
    found = card.results["predictions"]
    nll = -log_probs.gather(1, target.unsqueeze(1)).double().mean().item()
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nll), rel=1e-4)
    entropy = torch.special.entr(log_probs.exp()).sum(1).mean().item()
    assert found.entropy == pytest.approx(entropy, rel=1e-5)
    for k, share in found.top_k_share.items():
        expected = (target_ranks(log_probs, target) < int(k)).double().mean().item()
        assert share == pytest.approx(expected, abs=1.01 / TOKENS)
    assert list(found.top_k_share) == ["1", "5", "10"]  # of 64 words


def test_every_measure_has_the_result_of_its_command(case):
    card, built, _, _ = case
    for name, result in card.results.items():
        measure = find_measure(name).for_card(built.text.loaded.words)
        if isinstance(measure, TextMeasure):
            (found,) = built.text.measure([measure])
        else:
            found = measure.measure(built.text.loaded.words)
        expected = plain(result)
        if name == "predictions":  # only a card reads the training text
            expected["unigram_perplexity"] = None
        assert plain(found) == expected, name


def test_bands_cover_every_token_and_add_up_to_the_loss(case):
    card, built, _, target = case
    found = card.results["predictions"]
    bands = [*found.bands, found.uncounted]
    assert sum(band.tokens for band in bands) == TOKENS
    nats = sum(b.tokens * math.log(b.perplexity) for b in bands if b.tokens)
    assert nats / TOKENS == pytest.approx(found.nll, rel=1e-6)
    special = int((target < built.task.target_dictionary.nspecial).sum())
    assert found.uncounted.tokens == special


def test_samples_are_excerpts_of_the_text_with_the_top_words(case):
    card, built, log_probs, target = case
    words = [built.task.target_dictionary[i] for i in target.tolist()]
    assert len(card.samples) == 3
    for sample in card.samples:
        said = [position["word"] for position in sample["positions"]]
        before = sample["before"].split()
        start = next(
            i
            for i in range(TOKENS)
            if words[i : i + len(said)] == said and words[max(0, i - len(before)) : i] == before
        )
        for row, position in zip(log_probs[start:], sample["positions"], strict=False):
            best = position["top"][0]["probability"]
            assert best == pytest.approx(row.max().exp().item(), rel=1e-3)
            assert position["probability"] <= best * 1.001
            assert (position["place"] == 1) == (position["word"] == position["top"][0]["word"])


def test_a_unigram_model_counts_the_training_text(case):
    card, built, _, target = case
    data, words = built.dataset("train"), len(built.task.target_dictionary)
    text = torch.cat([data.collater([data[i]])["target"][0] for i in range(len(data))])
    counts = text.bincount(minlength=words).double()
    nats = ((len(text) + words) / (counts[target] + 1)).log().mean()
    found = card.results["predictions"].unigram_perplexity
    assert found == pytest.approx(nats.exp().item())
    assert f"a unigram model: {found:.3g}" in card.sections["predictions"].tile.note


def test_the_rank_stands_beside_the_bound_of_a_softmax(case):
    card, built, _, _ = case
    head, spectrum = built.text.head, card.sections["spectrum"]
    most = head.embed_dim + 1 + (head.bias is not None)
    assert dict(spectrum.rows)["at most, for a softmax of this width"] == f"{most}"
    assert f"at most {most} for a softmax" in spectrum.tile.note


def test_parameters_are_counted_once(case):
    card, built, _, _ = case
    assert sum(part["parameters"] for part in card.parameters) == sum(
        p.numel() for p in built.model.parameters()
    )
    (matrix,) = [part for part in card.parameters if part["name"] == "vocabulary matrix W"]
    assert matrix["parameters"] == built.model.decoder.output_projection.weight.numel()


def test_the_histogram_of_slopes_has_every_cell(case):
    card, built, _, _ = case
    function = getattr(built.model.decoder.output_projection, "pointwise", None)
    if (slopes := card.results["components"].slopes) is not None:
        histogram = card.sections["components"].figures[-1]
        assert sum(histogram.groups[""].values()) == function.knots
        assert slopes == pytest.approx(slope_statistics(function))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gss", {"c": -2.0, "k": 3.0, "learn": False}),
        ("gss", {"c": -2.0, "k": 3.0, "learn": True}),
        ("plif", {"knots": 8, "bound": 2.0, "freeze": True}),
        ("monotone_mlp", {"units": 4, "bound": 5.0}),
    ],
)
def test_options_of_structure_and_function_are_shown(name, options):
    sizes = {"num_classes": 9, "feature_dim": 4, "components": 2, "frequent": 4}
    sizes["gate_biases"] = "full"
    said = describe_head(build_head("mixtape", **sizes, pointwise=build_pointwise(name, **options)))
    assert said["gate_biases"] == "full"
    for option, value in options.items():
        assert said[f"{name} {option}"] == pytest.approx(value), option
