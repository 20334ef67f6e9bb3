"""The numbers of a card are those of the analysis functions on what fairseq itself computes."""

import math

import pytest
import torch

from highrank_plugins.analysis.components import prior_use, slope_statistics
from highrank_plugins.analysis.divergence import mean_pairwise_kld
from highrank_plugins.analysis.predictions import mean_entropy, top_k_share
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.analysis.spectrum import effective_rank, press_rank
from highrank_plugins.analysis.unargmaxable_words import unargmaxable
from tests.reports.card.made import card_of, checkpoint

TOKENS = 90


@torch.no_grad()
def by_fairseq(built, split="valid"):
    """Return log P [n, M] and targets [n] of the split's first tokens, by sentence."""
    built.model.eval()
    built.task.load_dataset(split)
    data, rows, words = built.task.dataset(split), [], []
    for index in range(len(data)):
        batch = data.collater([data[index]])
        out = built.model(**batch["net_input"])
        rows.append(built.model.get_normalized_probs(out, log_probs=True)[0])
        words.append(batch["target"][0])
    return torch.cat(rows)[:TOKENS], torch.cat(words)[:TOKENS]


@pytest.fixture(scope="module", params=["transformer", "transformer_mos", "transformer_lm_plif"])
def case(request, mt_data, lm_data, tmp_path_factory):
    """Return a card, its model and what fairseq predicts with it."""
    data = lm_data if "_lm" in request.param else mt_data
    path, built = checkpoint(tmp_path_factory.mktemp("card"), request.param, data)
    return card_of(path, data, tokens=TOKENS), built, *by_fairseq(built)


def test_predictions_equal_those_of_the_whole_matrix(case):
    card, _, log_probs, target = case
    found = card.results["predictions"]
    nll = -log_probs.gather(1, target.unsqueeze(1)).double().mean().item()
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nll), rel=1e-4)
    assert found.entropy == pytest.approx(mean_entropy(log_probs), rel=1e-5)
    for k, share in found.top_k_share.items():
        assert share == pytest.approx(top_k_share(log_probs, target, int(k)), abs=1.01 / TOKENS)
    assert list(found.top_k_share) == ["1", "5", "10"]  # of 64 words


def test_spectra_equal_those_of_the_whole_matrices(case):
    card, built, log_probs, _ = case
    weight = built.model.decoder.output_projection.weight.detach()
    of_weight, of_log_probs = card.results["saturation"], card.results["spectrum"]
    assert of_weight.shape == tuple(weight.shape)
    assert (of_log_probs.contexts, of_log_probs.words) == tuple(log_probs.shape)
    for found, matrix in ((of_weight, weight), (of_log_probs, log_probs)):
        s = torch.linalg.svdvals(matrix.double())
        found_s = torch.tensor(found.singular_values, dtype=torch.float64)
        assert (found_s - s).abs().max() < 1e-5 * float(s[0])
        dtype = torch.float64 if found is of_weight else torch.float32
        assert found.press_rank == press_rank(found_s, tuple(matrix.shape), dtype)
    for eps, rank in of_log_probs.effective_rank.items():
        assert rank == effective_rank(torch.linalg.svdvals(log_probs.double()), float(eps))


def test_divergence_equals_that_of_the_whole_matrix(case):
    card, _, log_probs, _ = case
    found = card.results["kld"].all_pairs
    assert found == pytest.approx(mean_pairwise_kld([log_probs]), rel=1e-4)


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
        starts = [
            i
            for i in range(TOKENS)
            if words[i : i + len(said)] == said and words[max(0, i - len(before)) : i] == before
        ]
        assert starts
        rows = [log_probs[starts[0] + i] for i in range(len(said))]
        for row, position in zip(rows, sample["positions"], strict=True):
            assert position["top"][0]["probability"] == pytest.approx(
                row.max().exp().item(), rel=1e-3
            )
            assert position["probability"] <= position["top"][0]["probability"] * 1.001
            assert (position["place"] == 1) == (position["word"] == position["top"][0]["word"])


def test_parameters_are_counted_once(case):
    card, built, _, _ = case
    assert sum(part["parameters"] for part in card.parameters) == sum(
        p.numel() for p in built.model.parameters()
    )
    (matrix,) = [part for part in card.parameters if part["name"] == "vocabulary matrix W"]
    assert matrix["parameters"] == built.model.decoder.output_projection.weight.numel()


@pytest.mark.parametrize("arch", ["transformer_softmax", "transformer_lm_moc"])
def test_retention_components_and_unargmaxable_words_are_right(arch, mt_data, lm_data, tmp_path):
    data = lm_data if "_lm" in arch else mt_data
    path, built = checkpoint(tmp_path, arch, data)
    card, model = card_of(path, data, tokens=20), built.model.eval()
    built.task.load_dataset("valid")
    batch = built.batch(sentences=4)
    order = batch["id"].argsort()
    with torch.no_grad():
        features = model.features(**batch["net_input"])[0][order]
    kept = batch["target"][order] != built.task.target_dictionary.pad()
    x, y = features[kept][:20], batch["target"][order][kept][:20]
    gradient = logit_gradient(model.head, x, y).flatten(0, 1)
    share = float(gradient_retention(model.head.weight, gradient))
    found = card.results["retention"]
    assert found.whole == pytest.approx(share, rel=1e-4)
    rows = gradient_retention(model.head.weight, gradient, per_token=True).sort().values
    assert found.quantiles["0.5"] == pytest.approx(
        float(rows[round((len(rows) - 1) / 2)]), rel=1e-4
    )
    if arch == "transformer_softmax":
        never = unargmaxable(model.head.weight.detach()).tolist()
        assert card.results["unargmaxable"].classes == never
    else:
        use = prior_use(model.head, x)
        prior = card.results["components"].prior
        assert prior.entropy == pytest.approx(use.entropy, rel=1e-4)
        assert prior.mean_prior.tolist() == pytest.approx(use.mean_prior.tolist(), rel=1e-3)


def test_slopes_equal_those_of_the_layer(case):
    card, built, _, _ = case
    found = card.results["components"]
    function = getattr(built.model.decoder.output_projection, "pointwise", None)
    if not hasattr(function, "slope_logits"):
        assert "it has no slopes" in found.absent["slopes"]
        return
    assert found.slopes == pytest.approx(slope_statistics(function))
    histogram = card.sections["components"].figures[-1]
    assert sum(histogram.groups[""].values()) == function.knots
    z, f = found.curve
    middle = len(z) // 2
    assert f[middle] == 0 and abs(z[middle]) < 1e-12
