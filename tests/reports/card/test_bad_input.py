"""Checkpoints as fairseq-train writes them, damaged, diverged, or without their data."""

import json

import pytest
import torch
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.measures import unargmaxable
from highrank_plugins.reports.card.page import render
from tests.reports.card.made import Page, card_of, checkpoint
from tests.trainings import last, train


@pytest.fixture(scope="module")
def softmax(mt_data, tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("card"), "transformer_softmax", mt_data)[0]


def call(*words):
    words = [str(word) for word in words]
    return CliRunner().invoke(app, ["analyse", "card", *words])


def changed(path, target, change):
    """Copy a checkpoint with other contents."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, target)
    return target


def cut(path, to):
    raw = path.read_bytes()
    return written(to, raw[: len(raw) // 2])


def written(to, content):
    to.write_bytes(content) if isinstance(content, bytes) else torch.save(content, to)
    return to


# what is wrong → (checkpoint, words after it) from (checkpoint, data, a new file), and the message
REFUSED = {
    "half a file": (lambda c, d, to: (cut(c, to), []), "bad.pt"),
    "a text": (lambda c, d, to: (written(to, b"hello"), []), "bad.pt"),
    "another file": (lambda c, d, to: (written(to, {"weights": torch.ones(2)}), []), "bad.pt"),
    "no model": (lambda c, d, to: (changed(c, to, lambda state: state.pop("model")), []), "bad.pt"),
    "no file": (lambda c, d, to: (to, []), "bad.pt"),
    "no such split": (lambda c, d, to: (c, [d, "--split", "nothing"]), "nothing"),
    "no dictionary": (lambda c, d, to: (c, [to.parent]), "dict"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_no_page_written(softmax, mt_data, tmp_path, change, message):
    checkpoint, words = change(softmax, mt_data, tmp_path / "bad.pt")
    done = call(checkpoint, *words, "--output", tmp_path / "card.html")
    assert done.exit_code == 2 and message in done.output
    assert not (tmp_path / "card.html").exists()


def test_a_diverged_checkpoint_has_a_card_that_says_so(softmax, mt_data, tmp_path):
    def diverge(state):
        state["model"]["decoder.output_projection.weight"][7, 0] = torch.nan

    card = card_of(changed(softmax, tmp_path / "nan.pt", diverge), mt_data)
    assert "not finite" in card.results["saturation"].reason
    assert "not finite" in card.results["unargmaxable"].reason
    assert "diverged" in card.results["predictions"].reason and "diverged" in card.samples.reason
    assert "diverged" in Page(render(card)).text


def test_a_model_with_an_adaptive_softmax_is_refused(lm_data, tmp_path):
    words = """--criterion adaptive_loss --adaptive-softmax-cutoff 20,50
        --ddp-backend legacy_ddp""".split()
    path, _ = checkpoint(tmp_path, "transformer_lm", lm_data, *words)
    done = call(path, lm_data, "--output", tmp_path / "card.html")
    assert done.exit_code == 2 and "adaptive softmax" in done.output


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
