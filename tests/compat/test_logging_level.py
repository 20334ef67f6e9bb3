"""Test compat/logging_level.py."""

import importlib
import inspect
import logging

import pytest
from fairseq.models.wav2vec import wav2vec2_classification

from highrank_plugins.compat import logging_level


@pytest.fixture
def root():
    logger = logging.getLogger()
    before = logger.level
    yield logger
    logger.setLevel(before)


def test_fairseq_still_sets_the_debug_level():
    assert "basicConfig(level=logging.DEBUG)" in inspect.getsource(wav2vec2_classification)


def test_the_debug_level_becomes_info(root, monkeypatch):
    monkeypatch.delenv("LOGLEVEL", raising=False)
    root.setLevel(logging.DEBUG)
    importlib.reload(logging_level)
    assert root.level == logging.INFO


def test_the_environment_decides_the_level(root, monkeypatch):
    monkeypatch.setenv("LOGLEVEL", "warning")
    root.setLevel(logging.DEBUG)
    importlib.reload(logging_level)
    assert root.level == logging.WARNING


def test_other_levels_are_kept(root):
    root.setLevel(logging.ERROR)
    importlib.reload(logging_level)
    assert root.level == logging.ERROR


def test_lines_have_the_format_of_the_tools(root):
    handler, own = logging.StreamHandler(), logging.StreamHandler()
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    own.setFormatter(logging.Formatter("%(message)s"))
    root.addHandler(handler)
    root.addHandler(own)
    try:
        importlib.reload(logging_level)
        record = root.makeRecord("tool", logging.INFO, "file", 1, "done", (), None)
        assert handler.format(record).endswith(" | INFO | tool | done")
        assert own.format(record) == "done"
    finally:
        root.removeHandler(handler)
        root.removeHandler(own)
