"""`highrank measure` along a text: numbers of `highrank_plugins.analysis`, plots, refusals."""

import json
import math

import pytest
import torch

from highrank_plugins.analysis.components import component_use
from highrank_plugins.analysis.divergence import Estimate, drawn_pairs, mean_pairwise_kld, row_kld
from highrank_plugins.analysis.predictions import target_ranks
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.analysis.spectrum import effective_rank, spectrum
from highrank_plugins.inference.collector import Collector
from tests.cli import highrank, refused
from tests.inference.checkpoints import FEW_KNOTS, write_checkpoint
from tests.models import small
from tests.tasks.built import build

SIZE = ["--tokens", 60, "--segment", 25]


@pytest.fixture(scope="module")
def stock(mt_data, tmp_path_factory):
    """Return fairseq's own Transformer, and its data."""
    built = small.build(mt_data, "transformer", "--criterion", "cross_entropy")
    return write_checkpoint(tmp_path_factory.mktemp("stock") / "a.pt", built), mt_data


@pytest.fixture(params=["stock", "mos"])
def either(request):
    return request.getfixturevalue(request.param)


def invoke(*words):
    return highrank("analyse" if words[0] == "spectra" else "measure", *words)


FEW_NUMBERS = ("kld", "retention", "unargmaxable", "word-similarity")  # without a figure


def analyse(folder, command, *words):
    """Read what a command wrote, and check that it drew."""
    output, plot = folder / "new" / "out.json", folder / "plot.png"
    drawn = [] if command in FEW_NUMBERS else ["--plot", plot]
    done = invoke(command, *words, "--output", output, *drawn)
    assert done.exit_code == 0, done.output
    assert "singular_values" not in done.stdout  # it is too long
    assert not drawn or plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(output.read_text())
    assert {"command", "versions", "git", "hardware"} <= found.keys()
    return found


def whole(checkpoint, data, **options):
    """Return log P, features and words of all tokens at once, and the head."""
    collector = Collector.open(checkpoint, str(data), "test", **({"tokens": 60} | options))
    parts = [(b.log_probs, b.features, b.target) for b in collector.blocks()]
    return *(torch.cat(of) for of in zip(*parts, strict=True)), collector.head


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spectrum_equals_that_of_the_whole_matrix(dtype, either, tmp_path):
    found = analyse(tmp_path, "spectrum", *either, *SIZE, "--dtype", dtype)
    log_probs, *_, head = whole(*either, dtype=dtype)
    want = spectrum([log_probs], getattr(torch, dtype))
    assert [found["contexts"], found["words"]] == list(want.shape)
    assert found["press_rank"] == want.press_rank()
    assert found["effective_rank"]["0.001"] == effective_rank(want.values, 1e-3)
    values = torch.tensor(found["singular_values"], dtype=torch.float64)
    noise = 3 * want.smallest_reliable  # batches of other sizes round otherwise
    torch.testing.assert_close(values, want.values, rtol=0, atol=noise)
    assert noise < (1e-4 if dtype == "float32" else 1e-12) * want.values[0]
    possible = 1 - log_probs[:, [0, 1]].double().exp().sum(1)
    assert found["impossible_nats"] == pytest.approx(-possible.log().mean().item(), rel=1e-5)
    if type(head).__name__ == "Softmax":
        assert found["press_rank"] <= head.feature_dim + 2


def test_several_measures_are_those_of_each_alone(mos, tmp_path, monkeypatch):
    names, words = ("kld", "context-dependence", "saturation"), [*mos, *SIZE]
    passes, blocks = [], Collector.blocks
    monkeypatch.setattr(Collector, "blocks", lambda *args: passes.append(args) or blocks(*args))
    done = invoke(",".join(names), *words, "--pairs", "all", "--output", tmp_path / "results")
    assert done.exit_code == 0, done.output
    assert len(passes) == 1
    shown = json.loads(done.stdout)
    assert [*shown] == [*names]
    for name in names:
        own = words if name != "saturation" else mos
        more = ["--pairs", "all"] if name == "kld" else []
        alone = json.loads(invoke(name, *own, *more).stdout)
        assert shown[name] == alone
        written = json.loads((tmp_path / "results" / f"{name.replace('-', '_')}.json").read_text())
        assert alone.items() <= written.items() and "hardware" in written
    assert "kld takes one checkpoint" in invoke("kld", mos[0], *mos).output


def drawn(p, q, pairs, seed=0):
    i, j = drawn_pairs(len(p), len(q), pairs, seed)
    return Estimate.of(row_kld(p[i], q[j]))


def test_kld_equals_that_of_the_whole_matrix(either, tmp_path):
    log_probs, *_ = whole(*either)
    some = analyse(tmp_path, "kld", *either, *SIZE, "--pairs", 40, "--seed", 3)
    want = drawn(log_probs, log_probs, 40, 3)
    assert some["sampled"] == pytest.approx(want._asdict(), rel=1e-4)
    every = analyse(tmp_path, "kld", *either, *SIZE, "--pairs", "all")
    assert every["all_pairs"] == pytest.approx(mean_pairwise_kld([log_probs]), rel=1e-4)


def test_kld_of_two_checkpoints_equals_that_of_the_whole_matrices(stream_data, mos, tmp_path):
    other = write_checkpoint(tmp_path / "b.pt", build(stream_data))
    p, *_ = whole(*mos)
    q, *_ = whole(other, stream_data)
    matrix = torch.stack([row_kld(row.expand_as(q), q) for row in p])
    every = analyse(tmp_path, "kld", *mos, *SIZE, "--other", other, "--pairs", "all")
    assert every["all_pairs"] == pytest.approx(matrix.mean().item(), rel=1e-4)
    assert every["matched"]["mean"] == pytest.approx(matrix.diag().mean().item(), rel=1e-4)
    some = analyse(tmp_path, "kld", *mos, *SIZE, "--other", other, "--pairs", 30)
    assert some["matched"]["mean"] == pytest.approx(matrix.diag().mean().item(), rel=1e-4)
    assert some["sampled"] == pytest.approx(drawn(p, q, 30)._asdict(), rel=1e-4)


def test_reach_needs_another_model(mos, stream_data, tmp_path):
    softmax = build(stream_data, arch="awd_lstm_lm_softmax")
    path = write_checkpoint(tmp_path / "softmax.pt", softmax)
    size = [*SIZE, "--contexts", 3, "--most", 8]
    found = analyse(tmp_path, "reach", path, stream_data, *size, "--other", mos[0])
    assert (found["contexts"], found["most"], len(found["sets"])) == (3, 8, 3)
    assert all(a >= b for a, b in zip(found["sets"], found["probabilities"], strict=True))
    refused("reach needs --other", "measure", "reach", path, stream_data, *size)
    words = ["measure", "reach", *mos, *size, "--other", mos[0]]
    refused("reach: not applicable to mos", *words)


def test_context_dependence_runs_along_any_text(either, tmp_path):
    found = analyse(tmp_path, "context-dependence", *either, *SIZE, "--bands", "2,5")
    assert found["contexts"] == 60 >= found["repeated"] > 0
    assert [band["low"] for band in found["bands"]] == [1, 2, 5]
    other = analyse(tmp_path, "context-dependence", *either, *SIZE, "--other", either[0])
    assert other["other"] == other["dependence"] == found["dependence"] > 0
    assert other["gain"]["mean"] == 0


def test_predictions_equal_those_of_the_whole_matrix(either, tmp_path):
    words = ["--top", "1,3", "--bands", "5,50"]
    found = analyse(tmp_path, "predictions", *either, *SIZE, *words)
    log_probs, _, target, _ = whole(*either)
    nll = -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    assert found["nll"] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(nll.mean().exp().item(), rel=1e-4)
    entropy = torch.special.entr(log_probs.exp()).sum(1).mean().item()
    assert found["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert found["top_k_share"]["3"] == (target_ranks(log_probs, target) < 3).double().mean().item()
    bands = [*found["bands"], found["uncounted"]]
    assert sum(band["tokens"] for band in bands) == found["tokens"] == 60
    nats = sum(b["tokens"] * math.log(b["perplexity"]) for b in bands if b["tokens"])
    assert nats == pytest.approx(nll.sum().item(), rel=1e-5)
    special = target < 4  # <s>, <pad>, </s>, <unk>
    assert found["uncounted"]["tokens"] == special.sum()


def test_retention_equals_that_of_the_whole_gradient(either, tmp_path):
    found = analyse(tmp_path, "retention", *either, *SIZE)
    _, features, target, head = whole(*either)
    rows = logit_gradient(head, features, target).flatten(0, 1)
    want = gradient_retention(head.weight, rows).item()
    assert found["whole"] == pytest.approx(want, rel=1e-4)
    assert found["tokens"] == 60


def test_components_report_the_prior(mos, tmp_path):
    found = analyse(tmp_path, "components", *mos, *SIZE)
    _, features, _, head = whole(*mos)
    want = component_use(head.log_weights(features, None, head.tensors()))
    assert found["prior"]["mean_prior"] == pytest.approx(want.mean_prior.tolist(), rel=1e-5)
    assert found["prior"]["entropy"] == pytest.approx(want.entropy, rel=1e-5)
    assert found["gates"] is None


def test_components_report_the_gates(stream_data, tmp_path):
    built = build(stream_data, "--head-frequent-ratio", 0.5, arch="awd_lstm_lm_mixtape")
    path = write_checkpoint(tmp_path / "a.pt", built)
    found = analyse(tmp_path, "components", path, stream_data, *SIZE, "--ends", 4)
    first, second, rare = found["gates"]
    assert (first["first"], first["last"], rare["last"]) == (0, 4, len(built.task.dictionary))
    assert 0 < first["entropy"] < math.log(4) and 0.25 < second["largest"] <= 1
    words = ["measure", "components", path, stream_data, "--ends", 1000]
    refused("ends must increase within (0, ", *words)


def test_components_report_the_slopes(lm_data, tmp_path):
    built = small.build(lm_data, "transformer_lm_plif", *FEW_KNOTS)
    path = write_checkpoint(tmp_path / "a.pt", built)
    found = analyse(tmp_path, "components", path, lm_data, *SIZE)
    slopes = torch.nn.functional.softplus(built.model.head.pointwise.slope_logits.double())
    assert found["slopes"]["mean"] == pytest.approx(slopes.mean().item(), rel=1e-4)
    z, f = found["curve"]
    assert z[0] == -20 and f == sorted(f)


def test_a_plot_without_content_is_refused(stock, tmp_path):
    words = ["measure", "components", *stock, *SIZE, "--plot", tmp_path / "a.png"]
    refused("nothing to draw: this measure has no figure of this layer", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kld", "--pairs", "1"], "--pairs 1: must be at least 2, for a standard error"),
        (["kld", "--pairs", "10,20"], "--pairs 10,20: give one number, or all"),
        (["kld", "--pairs", "some"], "--pairs some: expected whole numbers"),
        (["predictions", "--top", "0"], "--top 0: must be at least 1"),
        (["predictions", "--bands", "5,5"], "--bands 5,5: 5 is given twice; give it once"),
        (["spectrum", "--split", "nothing"], "nothing"),
        (["spectrum", "--plot", "a.gif"], "--plot a.gif: the name must end with .png"),
        (["components", "--ends", "5"], "--ends needs a layer with gates per word"),
        (["retention", "--device", "tpu"], "--device tpu: torch sees no such device"),
        (["kld,spectrm"], "unknown measure 'spectrm'; did you mean 'spectrum'?"),
        (["kld", "--top", "1"], "--top 1: changes nothing for kld; it is an option of predictions"),
        (["saturation", "--tokens", "9"], "--tokens: changes nothing for saturation; leave it"),
        (["kld,spectrum", "--other", __file__], "spectrum takes one model; leave it out"),
        (["kld,spectrum", "--plot", "a.png"], "--plot a.png: draws one measure; name one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_values_are_refused(words, message, mos):
    refused(message, "measure", words[0], *mos, *words[1:])


def test_a_missing_dictionary_is_named(mos, tmp_path):
    said = "dict.txt: no such file. A checkpoint holds no words"
    refused(said, "measure", "spectrum", mos[0], tmp_path)


def test_without_matplotlib_only_plots_are_refused(mos, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["measure", "spectrum", *mos, *SIZE, "--plot", tmp_path / "a.png"]
    refused("--plot needs matplotlib", *words)
    assert invoke("spectrum", *mos, *SIZE).exit_code == 0
