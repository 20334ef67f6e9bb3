"""Test compat/interactive_text.py."""

import io
import sys

import pytest
from fairseq import options
from fairseq_cli import interactive

import highrank_plugins.compat.interactive_text  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError


def typed(monkeypatch, data: bytes) -> None:
    """Make `data` standard input, as Python opens it in the C locale."""
    stream = io.TextIOWrapper(io.BytesIO(data), "ascii", "surrogateescape", "\n")
    monkeypatch.setattr("sys.stdin", stream)


@pytest.mark.parametrize("source", ["-", "file"])
def test_lines_end_at_line_feeds_and_are_utf8(monkeypatch, tmp_path, source):
    text = "\tgrün\u2028 \x85\rx\n\n\x0cÿ".encode()
    typed(monkeypatch, text)
    (tmp_path / "file").write_bytes(text)
    name = source if source == "-" else str(tmp_path / source)
    assert list(interactive.buffered_read(name, 2)) == [["\tgrün\u2028 \x85\rx", ""], ["\x0cÿ"]]


def test_stock_accepts_invalid_bytes_and_splits_at_carriage_returns(monkeypatch, tmp_path, stock):
    stock(interactive, "buffered_read")
    typed(monkeypatch, b"gr\xffn\n")
    assert list(interactive.buffered_read("-", 1)) == [["gr\udcffn"]]
    (tmp_path / "file").write_bytes(b"one\rline\n")
    assert len(list(interactive.buffered_read(str(tmp_path / "file"), 1))) == 2


@pytest.mark.parametrize("bad", [b"x\xff", b"x\0"])
def test_bytes_that_are_not_text_are_refused(monkeypatch, bad):
    typed(monkeypatch, b"one\n" + bad + b"\n")
    lines = interactive.buffered_read("-", 1)
    assert next(lines) == ["one"]
    with pytest.raises(TextError, match=r"^standard input:2:2: "):
        next(lines)


def test_a_closed_input_is_reported(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        next(interactive.buffered_read("-", 1))


def test_commands_print_utf8(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", None)
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "x"])
    options.parse_args_and_arch(options.get_generation_parser())
    print("▁A", file=sys.stdout, flush=True)
    assert out.buffer.getvalue() == "▁A\n".encode()
