"""Checkpoints as fairseq-train writes them, damaged, diverged, or without their data."""

import json

import pytest
import torch
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.measures import unargmaxable
from highrank_plugins.reports.card.describe import Absent
from highrank_plugins.reports.card.render import render
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


@pytest.mark.parametrize("option", [[], ["--data"]])
def test_the_command_writes_a_page_and_its_numbers(option, softmax, mt_data, tmp_path):
    page, numbers = tmp_path / "card.html", tmp_path / "card.json"
    words = [*option, mt_data, "--split", "test", "--tokens", 40, "--output", page]
    done = call(softmax, *words, "--json", numbers)
    assert done.exit_code == 0, done.output
    assert "transformer_softmax" in Page(page.read_text()).text
    found = json.loads(numbers.read_text())
    assert found["identity"]["split"] == "test" and found["measures"]["predictions"]["tokens"] == 40


@pytest.mark.parametrize("damage", ["cut", "text", "other", "no model"])
def test_a_file_that_is_not_a_checkpoint_is_refused(damage, softmax, tmp_path):
    path = tmp_path / "bad.pt"
    raw = softmax.read_bytes()
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "text":
        path.write_text("hello")
    elif damage == "other":
        torch.save({"weights": torch.ones(2)}, path)
    else:
        changed(softmax, path, lambda state: state.pop("model"))
    done = call(path, "--output", tmp_path / "card.html")
    assert done.exit_code == 2, done.output
    assert "bad.pt" in done.output
    assert not (tmp_path / "card.html").exists()


def test_missing_files_and_other_dictionaries_are_named(softmax, mt_data, lm_data, tmp_path):
    output = ["--output", tmp_path / "card.html"]
    assert "none.pt" in call(tmp_path / "none.pt", *output).output
    done = call(softmax, mt_data, "--data", mt_data, *output)
    assert done.exit_code == 2 and "are the same option: give one of them" in done.output
    done = call(softmax, mt_data, "--split", "nothing", *output)
    assert done.exit_code == 2 and "nothing" in done.output
    done = call(softmax, tmp_path, *output)
    assert done.exit_code == 2 and "dict" in done.output
    assert not (tmp_path / "card.html").exists()


def test_a_diverged_checkpoint_has_a_card_that_says_so(softmax, mt_data, tmp_path):
    def diverge(state):
        state["model"]["decoder.output_projection.weight"][7, 0] = torch.nan

    card = card_of(changed(softmax, tmp_path / "nan.pt", diverge), mt_data)
    assert "not finite" in card.results["saturation"].reason
    assert "not finite" in card.results["unargmaxable"].reason
    assert "diverged" in card.results["predictions"].reason and "diverged" in card.samples.reason
    assert "diverged" in Page(render(card)).text


def test_an_adaptive_softmax_has_a_card_without_a_head(lm_data, tmp_path):
    words = """--criterion adaptive_loss --adaptive-softmax-cutoff 20,50
        --ddp-backend legacy_ddp""".split()
    path, _ = checkpoint(tmp_path, "transformer_lm", lm_data, *words)
    card = card_of(path, lm_data)
    absent = [*card.results.values(), card.samples, card.configuration["head"]]
    assert all(isinstance(thing, Absent) for thing in absent)
    assert all("adaptive softmax" in thing.reason for thing in absent)
    assert len(card.missing) == 1 and "adaptive softmax" in Page(render(card)).text


def test_words_are_escaped(softmax, mt_data):
    page = render(card_of(softmax, mt_data))
    assert "&lt;/s&gt;" in page and "</s>" not in page


def test_a_layer_too_large_for_linear_programs_says_what_to_run(softmax, mt_data, monkeypatch):
    monkeypatch.setattr(unargmaxable, "LARGEST", 10)
    card = card_of(softmax, mt_data)
    assert "`highrank analyse unargmaxable`" in card.results["unargmaxable"].reason


@pytest.mark.parametrize("arch", ["transformer", "transformer_mixtape"])
def test_a_trained_checkpoint_has_a_card(arch, mt_data, tmp_path):
    criterion = ["--criterion", "cross_entropy"] if arch == "transformer" else []
    train(mt_data, tmp_path / "save", arch, 3, *criterion)
    page, numbers = tmp_path / "card.html", tmp_path / "card.json"
    words = ["--data", mt_data, "--tokens", 50, "--output", page, "--json", numbers]
    done = call(last(tmp_path / "save"), *words)
    assert done.exit_code == 0, done.output
    found = json.loads(numbers.read_text())
    assert found["configuration"]["training"]["updates"] == 3
    assert found["configuration"]["training"]["lr"] == [0.005]
    assert found["configuration"]["trunk"]["decoder_embed_dim"] == 32
    assert found["identity"]["arch"] == arch
    assert arch in Page(page.read_text()).text
