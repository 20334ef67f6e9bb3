"""Cards of checkpoints as fairseq-train writes them, by the command."""

import json

import pytest

from tests.reports.card.made import Page
from tests.reports.card.test_bad_input import call
from tests.trainings import last, train


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
