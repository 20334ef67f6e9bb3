"""A server of one file, and where downloads of it go."""

import pytest

from highrank_plugins.data import fetch
from tests.data.serving import CONTENT, serving


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(fetch, "PAUSES", (0, 0))


@pytest.fixture
def server():
    with serving(CONTENT) as server:
        yield server


@pytest.fixture
def output(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "file.bin"


@pytest.fixture
def part(output):
    """Return the path for the beginning that an earlier attempt left."""
    return output.with_name("file.bin.part")
