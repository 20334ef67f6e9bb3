"""A card of every kind of model: whole, alone, small, and with a reason where something lacks."""

import json
import re
from dataclasses import fields

import pytest

from highrank_plugins.experiments.card.contents import Absent
from highrank_plugins.experiments.card.render import render
from highrank_plugins.experiments.plain_values import plain
from tests.experiments.card.made import Page, card_of, checkpoint

ARCHS = [
    *("transformer", "transformer_lm", "lstm"),
    *(f"transformer_{head}" for head in ("softmax", "mos", "moc", "mixtape", "gss", "plif")),
    *(f"transformer_lm_{head}" for head in ("mos", "mixtape", "plif")),
    *("lstm_mos", "awd_lstm_lm_moc"),
    *(f"streams:awd_lstm_lm_{head}" for head in ("softmax", "mos", "mixtape", "mos_plif")),
]
SECTIONS = {
    "configuration", "parameters", "weight-spectrum", "log-prob-spectrum", "divergence",
    "unargmaxable", "retention", "components", "gates", "pointwise", "predictions", "bands",
    "samples",
}  # fmt: skip
MEASURED = ("weight_spectrum", "log_prob_spectrum", "divergence", "retention", "predictions")


@pytest.fixture(scope="module", params=ARCHS)
def made(request, mt_data, lm_data, stream_data, tmp_path_factory):
    """Architecture, card with data, card without."""
    arch = request.param
    data = lm_data if "_lm" in arch else mt_data
    data = stream_data if arch.startswith("streams:") else data
    path, _ = checkpoint(tmp_path_factory.mktemp("card"), arch, data)
    return arch, card_of(path, data), card_of(path)


def test_the_page_is_whole_and_needs_nothing_else(made):
    for card in made[1:]:
        html = render(card)
        page = Page(html)
        assert len(html) < 1_000_000
        assert set(page.ids) == SECTIONS and len(page.ids) == len(SECTIONS)
        assert set(page.links) == {f"#{name}" for name in SECTIONS}
        assert "script" not in page.tags and not re.search(r"url\(|@import|https?:", html)
        assert page.tags.count("title") >= 1 and "viewport" in html
        assert card.identity.arch in page.text
        assert "None" not in page.text and "nan" not in page.text.lower().split()


def test_all_that_applies_is_measured(made):
    arch, card, _ = made
    there = {f.name for f in fields(card) if not isinstance(getattr(card, f.name), Absent)}
    assert {*MEASURED, "bands", "samples"} <= there
    assert ("prior_use" in there) == ("mos" in arch or "moc" in arch)
    assert ("gates" in there) == ("mixtape" in arch)
    assert ("pointwise" in there) == ("gss" in arch or "plif" in arch)
    mixture = any(name in arch for name in ("mos", "moc", "mixtape"))
    assert ("never_argmax" in there) == (not mixture)
    assert card.identity.tokens == card.predictions.tokens == 100


def test_without_data_the_weights_are_told_and_the_rest_says_why(made):
    _, with_data, card = made
    assert card.weight_spectrum == with_data.weight_spectrum
    assert card.parameters == with_data.parameters
    assert card.configuration.head == with_data.configuration.head
    for name in ("log_prob_spectrum", "divergence", "retention", "predictions", "samples"):
        assert "without --data" in getattr(card, name).reason
    page = Page(render(card)).text
    assert "Words are numbers (#4 is class 4)" in page
    if not isinstance(card.never_argmax, Absent):
        assert card.never_argmax.classes == with_data.never_argmax.classes
        assert all(re.fullmatch(r"#\d+", word) for word in card.never_argmax.words)


def test_the_numbers_are_json(made):
    for card in made[1:]:
        text = json.dumps(plain(card), allow_nan=False)
        again = json.loads(text)
        assert again["identity"]["arch"] == card.identity.arch
        assert again["weight_spectrum"]["press_rank"] == card.weight_spectrum.press_rank
    assert set(again["samples"]) == {"reason"}
