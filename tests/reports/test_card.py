"""Cards of every kind of model, whole and alone: pages, numbers, reasons for what is missing."""

import json
import re
from html import unescape

import pytest
import torch

from highrank_plugins.analysis.components import slope_statistics
from highrank_plugins.common.files import plain
from highrank_plugins.inference.collector import Collector
from highrank_plugins.measures import all_measures, find_measure, unargmaxable
from highrank_plugins.measures.base import TextMeasure
from highrank_plugins.reports.card.gather import Absent, make_card
from highrank_plugins.reports.card.page import render
from tests.cli import highrank
from tests.inference.checkpoints import FEW_KNOTS, write_checkpoint
from tests.models import small
from tests.tasks.built import build
from tests.trainings import last, train

ARCHS = [
    *("transformer", "transformer_moc", "transformer_mixtape", "transformer_gss"),
    *("transformer_lm_mos", "lstm_mos", "streams:awd_lstm_lm_mos_plif"),
]
TOKENS = 90


def checkpoint(folder, arch, data):
    """Build an untrained model of this architecture; one on streams by the prefix `streams:`."""
    words = FEW_KNOTS if "plif" in arch else []
    if arch.startswith("streams:"):  # fairseq keeps this optimizer's options in a Namespace
        words = ["--optimizer", "sgd", "--lr", "1", *words]
        built = build(data, *words, arch=arch.removeprefix("streams:"))
    else:
        stock = ["--criterion", "cross_entropy"]
        stock *= arch in ("transformer", "transformer_lm", "lstm")
        built = small.build(data, arch, *(words or stock))
    return write_checkpoint(folder / "a.pt", built), built


def card_of(path, data=None, tokens=100):
    data = None if data is None else str(data)
    return make_card(path, data, "valid", tokens, "highrank analyse card …")


def text_of(html: str) -> str:
    return unescape(re.sub(r"(?s)<style.*?</style>|<[^>]+>", "", html))


@pytest.fixture(scope="module", params=ARCHS)
def made(request, mt_data, lm_data, stream_data, tmp_path_factory):
    """Return the architecture, a card with data, and one without."""
    arch = request.param
    data = lm_data if "_lm" in arch else mt_data
    data = stream_data if arch.startswith("streams:") else data
    path, _ = checkpoint(tmp_path_factory.mktemp("card"), arch, data)
    return arch, card_of(path, data), card_of(path)


def test_the_page_has_every_section_and_loads_nothing_and_the_numbers_are_valid_json(made):
    for card in made[1:]:
        html = render(card)
        sections = re.findall(r'<section id="(.*?)"', html)
        shown = {name for name, section in card.sections.items() if section.rows}
        shown |= set() if isinstance(card.samples, Absent) else {"samples"}
        assert sorted(sections) == sorted([*shown, "parameters", "configuration"])
        assert not re.search(r"<script|url\((?!#)|@import|https?:", html)
        assert "None" not in text_of(html) and "nan" not in text_of(html).lower().split()
        again = json.loads(json.dumps(plain(card.plain()), allow_nan=False))
        rank = again["measures"]["saturation"]["press_rank"]
        assert rank == card.results["saturation"].press_rank
    assert set(again["samples"]) == {"reason"}


def test_every_measure_that_applies_is_on_the_card_and_without_data_a_reason(made):
    arch, card, alone = made
    results = card.results
    assert results.keys() == {name for name, of in all_measures().items() if of.on_card}
    assert not any(isinstance(result, Absent) for result in results.values())
    parts = results["components"]
    assert (parts.prior is not None) == ("mos" in arch or "moc" in arch)
    assert (parts.gates is not None) == ("mixtape" in arch)
    assert (parts.curve is not None) == ("gss" in arch or "plif" in arch)
    assert (parts.slopes is not None) == ("plif" in arch)
    mixture = any(name in arch for name in ("mos", "moc", "mixtape"))
    assert results["unargmaxable"].applicable == (not mixture)
    assert bool(card.sections["unargmaxable"].rows) == (not mixture)
    assert bool(card.sections["components"].rows) == (mixture or parts.curve is not None)
    assert card.missing == {}
    assert not card.sections["kld"].figures  # one bar says no more than the table
    assert card.identity["tokens"] == results["predictions"].tokens == 100
    assert not isinstance(card.samples, Absent)

    assert alone.results["saturation"] == results["saturation"]
    assert alone.parameters == card.parameters
    assert alone.configuration["head"] == card.configuration["head"]
    for name in results:
        if issubclass(find_measure(name), TextMeasure):
            assert "without DATA" in alone.results[name].reason
    ((reason, titles),) = alone.missing.items()
    assert reason == alone.samples.reason and {"Samples", "Predictions"} < set(titles)
    page = text_of(render(alone))
    assert page.count("without DATA") == 1 and "Words are numbers (#4 is class 4)" in page
    never = alone.results["unargmaxable"]
    assert never.classes == results["unargmaxable"].classes
    assert all(re.fullmatch(r"#\d+", word) for word in never.words or [])


@pytest.fixture(scope="module", params=["transformer", "transformer_mos", "transformer_lm_plif"])
def case(request, mt_data, lm_data, tmp_path_factory):
    """Return a card, its model and what fairseq predicts with it."""
    data = lm_data if "_lm" in request.param else mt_data
    path, built = checkpoint(tmp_path_factory.mktemp("card"), request.param, data)
    built.text = Collector.open(path, str(data), "valid", tokens=TOKENS, device="cpu")
    found = (every[:TOKENS] for every in built.log_probs("valid"))
    return card_of(path, data, TOKENS), built, *found


def test_the_unigram_model_counts_the_training_text(case):
    card, built, _, target = case
    found = card.results["predictions"]
    assert list(found.top_k_share) == ["1", "5", "10"]  # of 64 words
    data, words = built.dataset("train"), len(built.task.target_dictionary)
    text = torch.cat([data.collater([data[i]])["target"][0] for i in range(len(data))])
    counts = text.bincount(minlength=words).double()
    nats = ((len(text) + words) / (counts[target] + 1)).log().mean()
    assert found.unigram_perplexity == pytest.approx(nats.exp().item())
    rows = dict(card.sections["predictions"].rows)
    assert rows["perplexity of a unigram model"] == f"{found.unigram_perplexity:,.2f}"


def test_every_measure_has_the_result_of_its_command_and_parameters_are_counted_once(case):
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
    head, spectrum = built.text.head, card.sections["spectrum"]
    most = head.embed_dim + 1 + (head.bias is not None)
    assert dict(spectrum.rows)["at most, for a softmax of this width"] == f"{most}"
    projection = built.model.decoder.output_projection
    if (slopes := card.results["components"].slopes) is not None:
        assert slopes == pytest.approx(slope_statistics(projection.pointwise))
    total = sum(p.numel() for p in built.model.parameters())
    assert sum(part["parameters"] for part in card.parameters) == total
    (matrix,) = [part for part in card.parameters if part["name"] == "vocabulary matrix W"]
    assert matrix["parameters"] == projection.weight.numel()


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


# -- checkpoints as fairseq-train writes them, damaged, diverged, or without their data ------------


def changed(path, target, change):
    """Copy a checkpoint with other contents."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, target)
    return target


def test_bad_input_is_refused_and_what_fails_says_so(mt_data, tmp_path, monkeypatch):
    softmax, _ = checkpoint(tmp_path, "transformer_softmax", mt_data)
    page = tmp_path / "card.html"
    changed(softmax, tmp_path / "empty.pt", lambda state: state.pop("model"))
    for words, message in (
        ([tmp_path / "empty.pt"], "empty.pt"),
        ([tmp_path / "none.pt"], "none.pt"),
        ([softmax, mt_data, "--split", "nothing"], "nothing"),
        ([softmax, tmp_path], "dict"),
    ):
        done = highrank("analyse", "card", *words, "--output", page)
        assert done.exit_code == 2 and message in done.output and not page.exists()

    def diverge(state):
        state["model"]["decoder.output_projection.weight"][7, 0] = torch.nan

    card = card_of(changed(softmax, tmp_path / "nan.pt", diverge), mt_data)
    assert "training has diverged" in card.results["saturation"].reason
    assert "not finite" in card.results["unargmaxable"].reason
    assert "diverged" in card.results["predictions"].reason and "diverged" in card.samples.reason
    assert "diverged" in text_of(render(card))
    monkeypatch.setattr(unargmaxable, "LARGEST", 10)  # too large for linear programs
    card = card_of(softmax, mt_data)
    assert "`highrank measure unargmaxable`" in card.results["unargmaxable"].reason
    assert "&lt;/s&gt;" in render(card) and "</s>" not in render(card)


@pytest.mark.parametrize("arch", ["transformer", "transformer_mixtape"])
def test_the_command_writes_a_page_and_its_numbers(arch, mt_data, tmp_path):
    criterion = ["--criterion", "cross_entropy"] if arch == "transformer" else []
    train(mt_data, tmp_path / "save", arch, 3, *criterion)
    page, numbers = tmp_path / "card.html", tmp_path / "card.json"
    words = [mt_data, "--split", "test", "--tokens", 40, "--output", page, "--json", numbers]
    done = highrank("analyse", "card", last(tmp_path / "save"), *words)
    assert done.exit_code == 0, done.output
    found = json.loads(numbers.read_text())
    assert found["identity"]["split"] == "test" and found["measures"]["predictions"]["tokens"] == 40
    training, model = (found["configuration"][part] for part in ("training", "model"))
    assert training["updates"] == 3 and training["lr"] == [0.005]
    assert model["decoder_embed_dim"] == 32 and found["identity"]["arch"] == arch
    assert arch in text_of(page.read_text())
