"""Commands and the hub read text as strictly as `highrank data`, before they write anything."""

import io
import sys
from types import SimpleNamespace

import pytest
from fairseq import options
from fairseq_cli import interactive, preprocess

from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError
from tests.data.test_bad_text import EVERYWHERE, GOOD


def run(folder, *words):
    names = [w for p in ("train", "valid", "test") for w in (f"--{p}pref", f"{folder}/{p}")]
    parsed = options.get_preprocessing_parser().parse_args([*names, *words])
    parsed.destdir = str(folder / "out")
    preprocess.main(parsed)


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "valid", "test"):
        for end in ("", ".en", ".de"):
            (tmp_path / f"{part}{end}").write_bytes(GOOD)
    return tmp_path


@pytest.mark.parametrize("fault", EVERYWHERE)
def test_bad_text_is_refused_before_anything_is_written(folder, fault):
    (folder / "test.de").write_bytes(EVERYWHERE[fault])
    with pytest.raises(TextError, match=r"test\.(de|en)(:\d|: no line|: the file is empty)"):
        run(folder, "-s", "en", "-t", "de")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("word", ["zebra", "<unk>"])
@pytest.mark.parametrize(
    ("train", "options", "refused"),
    [
        (b"", (), True),
        (b"", ("--nwordssrc", "40"), True),
        (b"", ("--nwordssrc", "10"), False),
        (b"", ("--thresholdsrc", "4"), False),
        (b"<unk>\n", (), False),
    ],
)
def test_words_that_a_language_model_never_sees_are_refused(folder, word, train, options, refused):
    (folder / "train").write_bytes(GOOD + train)
    (folder / "valid").write_bytes(GOOD + f"one {word}\n".encode())
    if not refused:
        return run(folder, "--only-source", *options)
    with pytest.raises(TextError, match=rf"valid:10:5: the word '{word}' is not in the training"):
        run(folder, "--only-source", *options)


def typed(monkeypatch, data: bytes) -> None:
    """Make `data` standard input, as Python opens it in the C locale."""
    stream = io.TextIOWrapper(io.BytesIO(data), "ascii", "surrogateescape", "\n")
    monkeypatch.setattr("sys.stdin", stream)


def test_lines_end_at_line_feeds_and_are_utf8(monkeypatch, tmp_path):
    text = "\tgrün\u2028 \x85\rx\n\n\x0cÿ".encode()
    typed(monkeypatch, text)
    (tmp_path / "file").write_bytes(text)
    for name in "-", str(tmp_path / "file"):
        assert list(interactive.buffered_read(name, 2)) == [["\tgrün\u2028 \x85\rx", ""], ["\x0cÿ"]]
    for bad in b"x\xff", b"x\0":
        typed(monkeypatch, b"one\n" + bad + b"\n")
        lines = interactive.buffered_read("-", 1)
        assert next(lines) == ["one"]
        with pytest.raises(TextError, match=r"^standard input:2:2: "):
            next(lines)
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


def test_a_language_model_that_would_be_ignored_is_refused():
    options = SimpleNamespace(lm_path="lm.pt")
    for cfg in options, SimpleNamespace(generation=options):
        with pytest.raises(UserError, match="--lm-path has no effect in fairseq-interactive"):
            interactive.main(cfg)
