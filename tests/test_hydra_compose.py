"""The tests' faster composition of configurations gives what hydra's own gives."""

from hydra._internal import utils
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests import hydra_compose
from tests.built import parse
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION


def test_the_configuration_is_hydras(mt_data, monkeypatch):
    line = [mt_data, "--arch", "transformer_mos_tiny", *TRANSLATION, *NARROW, *OUR_LOSS]
    odd = ["--adam-betas", "(0.9, 0.98)", "--lr", "0.1,0.2", "--head-context-scale", "4"]
    ours = [parse([*line, *odd]), parse([*line, *odd])]
    monkeypatch.setattr(CachingConfigRepository, "__init__", hydra_compose.STOCK_INIT)
    monkeypatch.setattr(OverridesParser, "parse_rule", hydra_compose.STOCK_PARSE)
    monkeypatch.setattr(utils, "inspect", hydra_compose.inspect)
    stock = parse([*line, *odd])
    assert ours == [stock, stock]
