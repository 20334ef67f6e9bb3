"""Tools of the tests: tiers by seconds, tolerances that cannot fail, faster configurations."""

import json

import pytest
import torch
from hydra._internal import utils
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests import hydra_compose, tiers
from tests.built import parse
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

TESTS = """
import pytest
import torch
def test_quick(): pass
def test_slow(): pass
@pytest.mark.long
def test_marked(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_new(n): pass
@pytest.mark.parametrize("n", range(6))
def test_many(n): pass
def test_huge(): pass
"""
MANY = ["many"] * 6


@pytest.mark.parametrize(("options", "run"), [
    ([], ["quick", "slow", "new", "new", *MANY, "huge"]),
    (["--fast"], ["quick", "new", "new"]),
    (["--sample"], ["quick", "slow", "new", "new", *MANY[:1]]),
    (["--run-long"], ["quick", "slow", "marked", "new", "new", *MANY, "huge"]),
])  # fmt: skip
def test_tiers(pytester, monkeypatch, options, run):
    seconds = {"slow": 1.0, "many": 15.0, "huge": 11.0}
    entries = {f"test_of_tiers.py::test_{name}": s for name, s in seconds.items()}
    monkeypatch.setattr(tiers, "FILE", pytester.path / "durations.json")
    tiers.FILE.write_text(json.dumps(entries))
    pytester.makepyfile(test_of_tiers=TESTS)
    pytester.makeini("[pytest]\nmarkers = long: long")
    ran = pytester.inline_run("-p", "no:randomly", *options, plugins=[tiers])
    passed, _, failed = ran.listoutcomes()
    names = [report.nodeid.partition("::test_")[2].partition("[")[0] for report in passed]
    assert names == run and failed == []


def test_a_test_whose_comparisons_cannot_fail_is_refused(pytester):
    # pytester forgets what is imported within, and this imports a module that cannot be twice
    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    pytester.makeconftest('pytest_plugins = ["tests.failing_tolerances"]')
    pytester.makepyfile(
        "import torch\n"
        "def compare(atol):\n"
        "    torch.testing.assert_close(torch.ones(2), torch.ones(2), rtol=0, atol=atol)\n"
        "def test_one():\n    compare(1)\n"
        "def test_other():\n    compare(1); compare(0.1)\n"
    )
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    assert "refused.py::test_one" in result.stdout.str().rpartition("short test summary")[2]


def test_the_configuration_is_hydras(mt_data, monkeypatch):
    line = [mt_data, "--arch", "transformer_mos_tiny", *TRANSLATION, *NARROW, *OUR_LOSS]
    odd = ["--adam-betas", "(0.9, 0.98)", "--lr", "0.1,0.2", "--head-context-scale", "4"]
    ours = [parse([*line, *odd]), parse([*line, *odd])]
    monkeypatch.setattr(CachingConfigRepository, "__init__", hydra_compose.STOCK_INIT)
    monkeypatch.setattr(OverridesParser, "parse_rule", hydra_compose.STOCK_PARSE)
    monkeypatch.setattr(utils, "inspect", hydra_compose.inspect)
    stock = parse([*line, *odd])
    assert ours == [stock, stock]
