"""A line of the log begins at the left edge, also while a progress bar is drawn."""

import importlib
import io
import logging

import pytest
from tqdm import tqdm

from highrank_plugins.compat import log_lines_over_bars


@pytest.fixture
def terminal():
    """Return a stream that a handler of the root logger and a bar share."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    importlib.reload(log_lines_over_bars)
    yield stream, handler
    logging.getLogger().removeHandler(handler)


def test_the_bar_is_cleared_before_a_line(terminal):
    stream, _ = terminal
    with tqdm(total=3, desc="epoch", file=stream, ncols=40) as bar:
        bar.refresh()
        assert stream.getvalue().rpartition("\r")[2].startswith("epoch")
        logging.getLogger("highrank").warning("something happened")
        assert "\rsomething happened\n" in stream.getvalue()


def test_importing_again_adds_no_second_filter(terminal):
    _, handler = terminal
    importlib.reload(log_lines_over_bars)
    assert [type(known).__name__ for known in handler.filters] == ["ClearBars"]
