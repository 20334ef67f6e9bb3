"""Make hydra's composition of a configuration twice as fast, with the same result.

Each of fairseq's commands composes its configuration from 350 overrides, and the tests do so a
thousand times: a tenth of their time.
"""

import copy
import functools
import inspect
from types import SimpleNamespace

from hydra._internal import utils
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser

STOCK_INIT, STOCK_PARSE = CachingConfigRepository.__init__, OverridesParser.parse_rule


def share_registered_configurations(self, delegate):
    """Copy the repository alone: only its list of sources is changed later."""
    self.delegate, self.cache = copy.copy(delegate), {}


def parse_once(self, text: str, rule: str):
    """Return a copy of what the same text gave before: most overrides are defaults."""
    return copy.copy(_parsed(text, rule))


@functools.cache
def _parsed(text: str, rule: str):
    return STOCK_PARSE(OverridesParser.create(), text, rule)


def callers():
    """Return the frames above the caller's, without the lines of their source files."""
    return inspect.stack(context=0)[1:]


def hasten() -> None:
    """Change hydra in this process."""
    CachingConfigRepository.__init__ = share_registered_configurations
    OverridesParser.parse_rule = parse_once
    utils.inspect = SimpleNamespace(**{**vars(inspect), "stack": callers})
