"""Downloads that resume without a published checksum, which would find a spliced file."""

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.fetch import fetch
from tests.data.serving import CONTENT

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_partial_file_of_an_older_version_is_discarded(server, output, tmp_path):
    """Compare ETags, since no published checksum would show a joined file."""
    server.content, server.version = b"A" * 5000, '"a"'
    server.die_after = [2000, 0, 0, 0, 0]
    with pytest.raises(UserError):
        fetch(server.url, output, ledger=tmp_path / "sums")
    server.content, server.version, server.die_after = b"B" * 5000, '"b"', []
    fetch(server.url, output, ledger=tmp_path / "sums")
    assert server.asked[-1] == "bytes=2000-" and output.read_bytes() == b"B" * 5000
    assert list(output.parent.glob("*.part*")) == []


@pytest.mark.parametrize("left", [700_001, 700_000, 300_000, 1])
def test_a_partial_file_of_the_same_content_is_completed(server, output, part, left):
    server.version = '"the same"'
    part.write_bytes(CONTENT[:left])
    part.with_name(f"{part.name}.version").write_text(server.version)
    fetch(server.url, output)
    assert output.read_bytes() == CONTENT
    assert server.asked == [f"bytes={left}-"]


def test_a_server_that_names_no_version_sends_the_whole_file_again(server, output, tmp_path):
    server.die_after = [200_000]
    fetch(server.url, output, ledger=tmp_path / "sums")
    assert server.asked == [None, None] and output.read_bytes() == CONTENT


def test_another_version_is_not_joined_if_the_server_ignores_if_range(
    server, output, part, tmp_path
):
    server.version, server.compares = '"new"', False
    part.write_bytes(b"A" + CONTENT[1:200_000])
    part.with_name(f"{part.name}.version").write_text('"old"')
    fetch(server.url, output, ledger=tmp_path / "sums")
    assert server.asked == ["bytes=200000-", None] and output.read_bytes() == CONTENT
