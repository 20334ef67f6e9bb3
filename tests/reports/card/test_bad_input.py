"""Checkpoints as fairseq-train writes them, damaged, diverged, or without their data."""

import json

import pytest
import torch

from highrank_plugins.measures import unargmaxable
from highrank_plugins.reports.card.page import render
from tests.cli import highrank
from tests.reports.card.made import Page, card_of, checkpoint
from tests.trainings import last, train


@pytest.fixture(scope="module")
def softmax(mt_data, tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("card"), "transformer_softmax", mt_data)[0]


def call(*words):
    return highrank("analyse", "card", *words)


def changed(path, target, change):
    """Copy a checkpoint with other contents."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, target)
    return target


def test_bad_input_is_refused_and_no_page_written(softmax, mt_data, tmp_path):
    page = tmp_path / "card.html"
    (tmp_path / "half.pt").write_bytes(softmax.read_bytes()[:5000])
    (tmp_path / "text.pt").write_bytes(b"hello")
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    changed(softmax, tmp_path / "empty.pt", lambda state: state.pop("model"))
    for words, message in (
        *(([tmp_path / name], name) for name in ("half.pt", "text.pt", "other.pt", "empty.pt")),
        ([tmp_path / "none.pt"], "none.pt"),
        ([softmax, mt_data, "--split", "nothing"], "nothing"),
        ([softmax, tmp_path], "dict"),
    ):
        done = call(*words, "--output", page)
        assert done.exit_code == 2 and message in done.output and not page.exists()


def test_a_diverged_checkpoint_has_a_card_that_says_so(softmax, mt_data, tmp_path):
    def diverge(state):
        state["model"]["decoder.output_projection.weight"][7, 0] = torch.nan

    card = card_of(changed(softmax, tmp_path / "nan.pt", diverge), mt_data)
    assert "not finite" in card.results["saturation"].reason
    assert "not finite" in card.results["unargmaxable"].reason
    assert "diverged" in card.results["predictions"].reason and "diverged" in card.samples.reason
    assert "diverged" in Page(render(card)).text


def test_words_are_escaped(softmax, mt_data):
    page = render(card_of(softmax, mt_data))
    assert "&lt;/s&gt;" in page and "</s>" not in page


def test_a_layer_too_large_for_linear_programs_says_what_to_run(softmax, mt_data, monkeypatch):
    monkeypatch.setattr(unargmaxable, "LARGEST", 10)
    card = card_of(softmax, mt_data)
    assert "`highrank measure unargmaxable`" in card.results["unargmaxable"].reason


@pytest.mark.parametrize("arch", ["transformer", "transformer_mixtape"])
def test_the_command_writes_a_page_and_its_numbers(arch, mt_data, tmp_path):
    criterion = ["--criterion", "cross_entropy"] if arch == "transformer" else []
    train(mt_data, tmp_path / "save", arch, 3, *criterion)
    page, numbers = tmp_path / "card.html", tmp_path / "card.json"
    words = [mt_data, "--split", "test", "--tokens", 40, "--output", page]
    done = call(last(tmp_path / "save"), *words, "--json", numbers)
    assert done.exit_code == 0, done.output
    found = json.loads(numbers.read_text())
    assert found["identity"]["split"] == "test" and found["measures"]["predictions"]["tokens"] == 40
    assert found["configuration"]["training"]["updates"] == 3
    assert found["configuration"]["training"]["lr"] == [0.005]
    assert found["configuration"]["trunk"]["decoder_embed_dim"] == 32
    assert found["identity"]["arch"] == arch
    assert arch in Page(page.read_text()).text
