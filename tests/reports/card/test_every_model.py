"""A card of every kind of model: whole, alone, small, and with a reason where something lacks."""

import json
import re

import pytest

from highrank_plugins.common.files import plain
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import TextMeasure
from highrank_plugins.reports.card.gather import Absent
from highrank_plugins.reports.card.page import render
from tests.reports.card.made import Page, card_of, checkpoint

ARCHS = [
    *("transformer", "transformer_moc", "transformer_mixtape", "transformer_gss"),
    *("transformer_lm_mos", "lstm_mos", "streams:awd_lstm_lm_mos_plif"),
]
# the same layers on other trunks
MORE = [
    *("transformer_lm", "lstm", "awd_lstm_lm_moc"),
    *(f"transformer_{head}" for head in ("softmax", "mos", "plif")),
    *(f"transformer_lm_{head}" for head in ("mixtape", "plif")),
    *(f"streams:awd_lstm_lm_{head}" for head in ("softmax", "mos", "mixtape")),
]
EACH = [*ARCHS, *(pytest.param(arch, marks=pytest.mark.long) for arch in MORE)]
MEASURED = {name for name, measure in all_measures().items() if measure.on_card}


@pytest.fixture(scope="module", params=EACH)
def made(request, mt_data, lm_data, stream_data, tmp_path_factory):
    """Return the architecture, a card with data, and one without."""
    arch = request.param
    data = lm_data if "_lm" in arch else mt_data
    words = []
    if arch.startswith("streams:"):  # fairseq keeps this optimizer's options in a Namespace
        data, words = stream_data, ["--optimizer", "sgd", "--lr", "1"]
    path, _ = checkpoint(tmp_path_factory.mktemp("card"), arch, data, *words)
    return arch, card_of(path, data), card_of(path)


def test_the_page_is_complete_and_self_contained(made):
    for card in made[1:]:
        html = render(card)
        page = Page(html)
        assert len(html) < 1_000_000
        assert len(set(page.ids)) == len(page.ids)
        sections = re.findall(r'<section id="(.*?)"', html)
        shown = {name for name, section in card.sections.items() if section.rows}
        shown |= set() if isinstance(card.samples, Absent) else {"samples"}
        assert set(sections[:-2]) == shown and sections[-2:] == ["parameters", "configuration"]
        assert len(sections) == len(shown) + 2
        assert {f"#{name}" for name in sections} <= set(page.links)
        links = {link for link in page.links if not link.startswith("data:image/svg+xml;base64,")}
        assert links <= {f"#{name}" for name in page.ids}
        assert "script" not in page.tags and not re.search(r"url\((?!#)|@import|https?:", html)
        assert page.tags.count("title") >= 1 and "viewport" in html
        assert card.identity["arch"] in page.text
        assert "None" not in page.text and "nan" not in page.text.lower().split()


def test_every_measure_that_applies_is_on_the_card(made):
    arch, card, _ = made
    results = card.results
    assert results.keys() == MEASURED
    assert not any(isinstance(result, Absent) for result in results.values())
    parts = results["components"]
    assert (parts.prior is not None) == ("mos" in arch or "moc" in arch)
    assert (parts.gates is not None) == ("mixtape" in arch)
    assert (parts.curve is not None) == ("gss" in arch or "plif" in arch)
    assert (parts.slopes is not None) == ("plif" in arch)
    mixture = any(name in arch for name in ("mos", "moc", "mixtape"))
    assert (results["unargmaxable"].count is None) == mixture
    assert bool(card.sections["unargmaxable"].rows) == (not mixture)
    assert bool(card.sections["components"].rows) == (mixture or parts.curve is not None)
    assert card.missing == {}
    assert not card.sections["kld"].figures  # one bar says no more than the table
    assert card.identity["tokens"] == results["predictions"].tokens == 100
    assert not isinstance(card.samples, Absent)


def test_without_data_the_card_has_the_weights_and_reasons_for_the_rest(made):
    _, with_data, card = made
    assert card.results["saturation"] == with_data.results["saturation"]
    assert card.parameters == with_data.parameters
    assert card.configuration["head"] == with_data.configuration["head"]
    for name, measure in all_measures().items():
        if measure.on_card and issubclass(measure, TextMeasure):
            assert "without DATA" in card.results[name].reason
    assert "without DATA" in card.samples.reason
    ((reason, titles),) = card.missing.items()
    assert "without DATA" in reason and {"Samples", "Predictions"} < set(titles)
    page = Page(render(card)).text
    assert page.count("without DATA") == 1
    assert "Words are numbers (#4 is class 4)" in page
    never = card.results["unargmaxable"]
    assert never.classes == with_data.results["unargmaxable"].classes
    assert all(re.fullmatch(r"#\d+", word) for word in never.words or [])


def test_the_numbers_are_valid_json(made):
    for card in made[1:]:
        text = json.dumps(plain(card.plain()), allow_nan=False)
        again = json.loads(text)
        assert again["identity"]["arch"] == card.identity["arch"]
        rank = again["measures"]["saturation"]["press_rank"]
        assert rank == card.results["saturation"].press_rank
    assert set(again["samples"]) == {"reason"}
