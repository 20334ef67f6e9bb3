"""docs/reference/archs.md is what `highrank list archs` prints, and what it prints exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_INV_REGISTRY

import highrank_plugins
from highrank_plugins.heads import tokens

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "archs.md"

pytestmark = pytest.mark.xdist_group("arch_table")  # they share a table


@pytest.fixture(scope="module")
def printed() -> str:
    command = [Path(sys.executable).parent / "highrank", "list", "archs"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_document_is_up_to_date(printed):
    assert DOCUMENT.read_text() == printed, "run: highrank list archs > docs/reference/archs.md"


def test_the_page_names_every_architecture_and_no_other(printed):
    highrank_plugins.register()
    patterns = re.findall(r"`([\w<>]*<layer>\w*)`", printed.partition("## On")[2])
    named = {pattern.replace("<layer>", token) for pattern in patterns for token in tokens()}
    ours = {"transformer_highrank", "transformer_lm_highrank", "awd_lstm_lm", "lstm_highrank"}
    assert named == {arch for model in ours for arch in ARCH_MODEL_INV_REGISTRY[model]} - ours
