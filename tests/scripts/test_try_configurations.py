"""Every configuration trains: the table of it is complete, and --run-long makes it again.

    HIGHRANK_TEXT=DIR pytest --run-long tests/scripts/test_try_configurations.py

DIR has {train,valid}.{en,de}; without it the text of tests/text/tiny is used.
"""

import math
import os
from pathlib import Path

import pytest

from scripts import try_configurations as script
from tests.recipes.running import TEXT


def test_every_configuration_has_trained_and_the_page_names_what_is_left_out():
    """A new file needs a row: python scripts/try_configurations.py --help says how."""
    lines = script.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [tuple(row[:2]) for row in rows] == [*map(script.name_of, script.configurations())]
    assert {row[-1] for row in rows} == {"falls"}
    assert script.PAGE.read_text(encoding="utf-8") == script.page(rows)
    files = (script.ROOT / "recipes").glob("*/conf/**/*.yaml")
    kept = {path for path in files if not path.name.startswith("base")}
    left_out = {"/".join(script.name_of(path)) for path in kept - set(script.configurations())}
    assert left_out == set(script.LEFT_OUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    script.start()
    folder = tmp_path_factory.mktemp("configurations")
    script.prepare(Path(os.environ.get("HIGHRANK_TEXT", TEXT)).absolute(), folder)
    return folder


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("configurations")
@pytest.mark.parametrize(
    "path", script.configurations(), ids=lambda path: "/".join(script.name_of(path))
)
def test_the_loss_falls(path, folder):
    """On the text of tests/text/tiny the loss may rise again in the second epoch."""
    trial = script.try_configuration(path, folder)
    assert not trial.error
    if os.environ.get("HIGHRANK_TEXT"):
        assert trial.falls, trial
    assert trial.last < math.log2(script.WORDS)
