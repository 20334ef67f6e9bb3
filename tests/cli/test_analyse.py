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
from highrank_plugins.common.names import Score
from highrank_plugins.inference.collector import Collector
from highrank_plugins.measures import find_measure
from tests.cli import highrank, refused
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.tasks.built import build

SIZE = ["--tokens", 60, "--segment", 25]


@pytest.fixture(scope="module")
def stock(mt_data, tmp_path_factory):
    """Return fairseq's own Transformer, and its data."""
    built = small.build(mt_data, "transformer", "--criterion", "cross_entropy")
    return write_checkpoint(tmp_path_factory.mktemp("stock") / "a.pt", built), mt_data


def invoke(*words):
    return highrank("analyse" if words[0] == "spectra" else "measure", *words)


def analyse(folder, command, *words):
    """Read what a command wrote, and check that it drew."""
    output, plot = folder / "new" / "out.json", folder / "plot.png"
    done = invoke(command, *words, "--output", output, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "singular_values" not in done.stdout  # it is too long
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(output.read_text())
    assert {"command", "versions", "git", "hardware"} <= found.keys()
    assert found.get("split", "test") == "test"
    return found


def whole(checkpoint, data, **options):
    """Return log P, features and words of all tokens at once, and the head."""
    collector = Collector.open(checkpoint, str(data), "test", **({"tokens": 60} | options))
    parts = [(b.log_probs, b.features, b.target) for b in collector.blocks()]
    return *(torch.cat(of) for of in zip(*parts, strict=True)), collector.head


def drawn(p, q, pairs):
    i, j = drawn_pairs(len(p), len(q), pairs, 0)
    return Estimate.of(row_kld(p[i], q[j]))._asdict()


OPTIONS = {
    "spectrum": [],
    "kld": ["--pairs", 40],
    "context-dependence": ["--bands", "5,50"],
    "predictions": ["--top", "1,3", "--bands", "5,50"],
    "components": [],
    "retention": [],
}


@pytest.mark.parametrize(("model", "dtype"), [("stock", "float32"), ("mos", "float64")])
def test_measures_share_a_pass_and_equal_those_of_each_alone_and_of_the_whole_matrix(
    model, dtype, request, tmp_path, monkeypatch
):
    at = request.getfixturevalue(model)
    words, passes, blocks = [*at, *SIZE, "--dtype", dtype], [], Collector.blocks
    monkeypatch.setattr(Collector, "blocks", lambda *args: passes.append(args) or blocks(*args))
    options = [word for own in OPTIONS.values() for word in own]
    where = tmp_path / "results"
    done = invoke(",".join(OPTIONS), *words, *options, "--output", where)
    assert done.exit_code == 0 and len(passes) == 1, done.output
    shown, found = json.loads(done.stdout), {}
    assert [*shown] == [*OPTIONS]
    for name, own in OPTIONS.items():
        if (model, name) == ("stock", "components"):  # there is nothing to draw
            alone = json.loads(invoke(name, *words, *own).stdout)
        else:
            alone = analyse(tmp_path, name, *words, *own)
        found[name] = json.loads((where / f"{name.replace('-', '_')}.json").read_text())
        assert shown[name].items() <= alone.items() and shown[name].items() <= found[name].items()
    log_probs, features, target, head = whole(*at, dtype=dtype)

    of, want = found["spectrum"], spectrum([log_probs], getattr(torch, dtype))
    assert [of["contexts"], of["words"]] == list(want.shape)
    assert of["press_rank"] == want.press_rank()
    assert of["effective_rank"]["0.001"] == effective_rank(want.values, 1e-3)
    values = torch.tensor(of["singular_values"], dtype=torch.float64)
    noise = 3 * want.smallest_reliable  # batches of other sizes round otherwise
    torch.testing.assert_close(values, want.values, rtol=0, atol=noise)
    assert noise < (1e-4 if dtype == "float32" else 1e-12) * want.values[0]
    if model == "stock":
        assert of["press_rank"] <= head.feature_dim + 2

    assert found["kld"]["sampled"] == pytest.approx(drawn(log_probs, log_probs, 40), rel=1e-4)
    every = analyse(tmp_path, "kld", *words, "--pairs", "all")
    assert every["all_pairs"] == pytest.approx(mean_pairwise_kld([log_probs]), rel=1e-4)
    assert "kld takes one checkpoint" in invoke("kld", at[0], *words).output

    of = found["context-dependence"]
    assert of["contexts"] == 60 >= of["repeated"] > 0
    assert [band["low"] for band in of["bands"]] == [1, 5, 50]
    other = analyse(tmp_path, "context-dependence", *words, "--other", at[0])
    assert other["other"] == other["dependence"] == of["dependence"] > 0
    assert other["gain"]["mean"] == 0

    of, nll = found["predictions"], -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    assert of["nll"] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert of["perplexity"] == pytest.approx(nll.mean().exp().item(), rel=1e-4)
    entropy = torch.special.entr(log_probs.exp()).sum(1).mean().item()
    assert of["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert of["top_k_share"]["3"] == (target_ranks(log_probs, target) < 3).double().mean().item()
    bands = [*of["bands"], of["uncounted"]]
    assert sum(band["tokens"] for band in bands) == of["tokens"] == 60
    nats = sum(b["tokens"] * math.log(b["perplexity"]) for b in bands if b["tokens"])
    assert nats == pytest.approx(nll.sum().item(), rel=1e-5)
    assert of["uncounted"]["tokens"] == (target < 4).sum()  # <s>, <pad>, </s>, <unk>

    of, rows = found["retention"], logit_gradient(head, features, target).flatten(0, 1)
    assert of["whole"] == pytest.approx(gradient_retention(head.weight, rows).item(), rel=1e-4)
    assert len(of["batches"]) == len(of["first"]) > 1 and of["tokens"] == 60

    if model == "mos":
        of = found["components"]
        want = component_use(head.log_weights(features, None, head.tensors()))
        assert of["prior"]["mean_prior"] == pytest.approx(want.mean_prior.tolist(), rel=1e-5)
        assert of["prior"]["entropy"] == pytest.approx(want.entropy, rel=1e-5)
        assert of["gates"] is None


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
    assert some["sampled"] == pytest.approx(drawn(p, q, 30), rel=1e-4)
    kld = find_measure("kld")  # the divergence of two models is no score of the first
    assert kld.scores(some, "test") == kld.scores(every, "test") == {}
    score = kld.scores(some | {"matched": None}, "test")["test_kld"]
    assert score == Score(some["sampled"]["mean"], "contexts:60|pairs:30")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kld", "--pairs", "1"], "--pairs 1: must be at least 2, for a standard error"),
        (["predictions", "--bands", "5,5"], "--bands 5,5: 5 is given twice; give it once"),
        (["components", "--ends", "5"], "--ends needs a layer with gates per word"),
        (["kld,spectrm"], "unknown measure 'spectrm'; did you mean 'spectrum'?"),
        (["kld", "--top", "1"], "--top 1: changes nothing for kld; it is an option of predictions"),
        (["kld,spectrum", "--other", __file__], "spectrum takes one model; leave it out"),
        (["kld,spectrum", "--output", __file__], "is a file: name a folder for several measures"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_values_are_refused_before_the_pass(words, message, mos, monkeypatch):
    monkeypatch.setattr(Collector, "blocks", None)
    refused(message, "measure", words[0], *mos, *words[1:])


def test_what_is_missing_is_named(stock, mos, monkeypatch, tmp_path):
    said = "dict.txt: no such file. A checkpoint holds no words"
    refused(said, "measure", "spectrum", mos[0], tmp_path)
    words = ["--plot", tmp_path / "a.png"]
    said = "nothing to draw: this layer has no such part"
    refused(said, "measure", "components", *stock, *SIZE, *words)
    one = ["--tokens", 5, *words]
    refused("or the text is a single batch", "measure", "retention", *stock, *one)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("--plot needs matplotlib", "measure", "spectrum", *mos, *SIZE, *words)
    assert invoke("spectrum", *mos, *SIZE).exit_code == 0
