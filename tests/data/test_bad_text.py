"""Malformed corpora are refused with file and line, and leave no output; good ones are counted."""

import gzip
import logging
import re
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.common.text_lines import NO_EMPTY_LINES, TextError, check_texts
from tests.cli import highrank

highrank_plugins.register()  # the hooks look at dictionaries
SENTENCES = [
    b"one small cat sees a big house",
    b"a dog eats in the house",
    b"big trees like dogs",
] * 3
GOOD = b"\n".join(SENTENCES) + b"\n"
PARTS = [f"{part}.{side}" for part in ("train", "valid", "test") for side in ("en", "de")]
CORPUS = "texts:\n" + "".join(f"  {p}: [[{p}.en, {p}.de]]\n" for p in ("train", "valid", "test"))


def line_with(data: bytes) -> bytes:
    """Return a text whose fifth line holds these bytes."""
    return b"\n".join([*SENTENCES[:4], data, *SENTENCES[5:]]) + b"\n"


NO_TEXT = {
    "latin-1": line_with("grün ".encode() + b"sch\xf6n"),
    "a lone continuation": line_with(b"a \x80 b"),
    "a character that is cut": line_with(b"gr\xc3"),
    "an overlong NUL": line_with(b"a\xc0\x80b"),
    "a surrogate": line_with(b"\xed\xa0\x80"),
    "beyond Unicode": line_with(b"\xf5\x80\x80\x80"),
    "0xfe and 0xff": line_with(b"\xfe\xff"),
    "a cut character at the end": GOOD + b"gr\xe2\x82",
    "UTF-16": "one cat\n".encode("utf-16") * 9,
    "UTF-32": "one cat\n".encode("utf-32") * 9,
    "NUL": line_with(b"a\0b"),
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "a byte order mark of a file put after another": GOOD + b"\xef\xbb\xbf" + GOOD,
}
NO_PAIR = {
    "a line too many": GOOD + b"one more\n",
    "a line too few": GOOD.partition(b"\n")[2],
    "an empty file": b"",
}
NO_SENTENCE = {
    "an empty line": line_with(b""),
    "white space only": line_with(b" \t "),
    "no-break spaces only": line_with("\u00a0\u2003".encode()),
}
UNFIT = {
    "a carriage return": line_with(b"a\rb"),
    "Windows' ends of lines": GOOD.replace(b"\n", b"\r\n"),
    "20,000 words": line_with(b"w " * 20_000),
} | {
    word: line_with(b"a %s b" % word.encode())
    for word in ("<s>", "<pad>", "</s>", "madeupword0000")
}
EVERYWHERE = NO_TEXT | NO_PAIR | UNFIT | {"no word": b"\n" * len(SENTENCES)}
PLACES = {
    "latin-1": "de:5:9: byte 0xf6 is not UTF-8",
    "a character that is cut": "de:5:3: byte 0xc3 is not UTF-8",
    "NUL": "de:5:2: NUL",
    "a byte order mark": "de:1:1: byte order mark",
    "a byte order mark of a file put after another": "de:10:1: byte order mark",
    "a line too many": r"de:10: this line has no partner: .*valid\.en ends after line 9;",
    "a line too few": r"en:9: this line has no partner: .*valid\.de ends after line 8;",
    "an empty file": "de: the file is empty",
    "an empty line": "de:5:1: empty line",
    "no-break spaces only": "de:5:1: empty line",
    "a carriage return": "de:5:2: carriage return",
    "<s>": "de:5:3: the text has the word <s>, which fairseq reserves",
    "20,000 words": "de:5:1: 20,000 words, more than the 1,000",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    for name in (*(f"text/{name}" for name in PARTS), "train.txt", "valid.txt", "test.txt"):
        (tmp_path / name).write_bytes(GOOD)
    (tmp_path / "corpus.yaml").write_text(CORPUS)
    return tmp_path


def refused(folder: Path, command: str, bad: str) -> str:
    """Run a `highrank data` command on good text with one bad file; return what it says."""
    logging.disable(logging.CRITICAL)
    done = highrank("data", command, *COMMANDS[command](folder))
    assert done.exit_code == 2, done.output
    place = rf"{bad}(:\d+(:\d+)?|: the file is empty|: no line has a word)"
    assert re.search(place, done.output), done.output
    assert "Traceback" not in done.output
    assert not (folder / "out").exists()
    return done.output


COMMANDS = {
    "check-text": lambda f: [f / "text" / "valid.en", f / "text" / "valid.de"],
    "clean-texts": lambda f: [f / "corpus.yaml", f / "text", f / "out", "--languages", "en,de"],
    "pieces": lambda f: [f / "text", f / "out", "--languages", "en,de", "--vocab-size", 40,
                         "--processes", 1],
    "binarise": lambda f: [f / "text", f / "out", "--languages", "en,de", "--processes", 1],
    "lm-corpus": lambda f: ["ptb", "--data", f, "--output", f / "out", "--other-text"],
}  # fmt: skip
FAULTS = {
    "check-text": EVERYWHERE | NO_SENTENCE,
    "clean-texts": {k: v for k, v in (NO_TEXT | NO_PAIR | NO_SENTENCE).items() if "order" not in k},
    "lm-corpus": NO_TEXT,
    "pieces": EVERYWHERE,
    "binarise": EVERYWHERE | {"an <unk> that was not trained": line_with(b"a <unk> b")},
}


@pytest.mark.parametrize(
    ("command", "fault"), [(command, fault) for command in FAULTS for fault in FAULTS[command]]
)
def test_a_malformed_corpus_is_refused(folder, command, fault):
    bad = folder / ("test.txt" if command == "lm-corpus" else "text/valid.de")
    bad.write_bytes(FAULTS[command][fault])
    said = refused(folder, command, r"valid\.(en|de)" if fault in NO_PAIR else bad.name)
    assert command != "check-text" or re.search(PLACES.get(fault, ""), said.replace("\n", ""))


def test_an_earlier_result_is_neither_replaced_nor_mixed(folder):
    (folder / "out").mkdir()
    (folder / "out" / "valid.fr").write_bytes(GOOD)
    for command in ("clean-texts", "pieces", "binarise", "lm-corpus"):
        done = highrank("data", command, *COMMANDS[command](folder))
        assert done.exit_code == 2 and "out exists already: name another" in done.output
    assert [path.name for path in (folder / "out").iterdir()] == ["valid.fr"]


@pytest.mark.parametrize("languages", ["de", "en,de"])
def test_a_text_whose_words_the_training_text_lacks_is_not_binarised(folder, languages):
    (folder / "text" / "test.de").write_bytes(b"one small Katze\n" * len(SENTENCES))
    words = [folder / "text", folder / "out", "--languages", languages, "--processes", 1]
    assert (
        "test.de: 9 lines, 36 tokens with </s>, 25.00% unk"
        in highrank("data", "binarise", *words).output
    )
    (folder / "text" / "test.de").write_bytes(b"eine kleine cat\n" * len(SENTENCES))
    words[1] = folder / "other"
    done = highrank("data", "binarise", *words)
    assert done.exit_code == 2 and not words[1].exists()
    assert re.search(r"text/test\.de: 18 of 27 words are unknown, so no score of", done.stderr)


def test_good_text_is_counted_plain_and_packed_and_a_damaged_or_missing_file_named(folder):
    """The last line feed may be missing; a byte order mark within a line is a character."""
    plain, other = folder / "text" / "valid.en", folder / "text" / "valid.de"
    packed = plain.with_name("packed.en.gz")
    for text in (GOOD, GOOD[:-1], GOOD.replace(b"cat", "Ein\ufeffSatz".encode())):
        plain.write_bytes(text)
        packed.write_bytes(gzip.compress(text))
        assert check_texts([plain, other, packed], NO_EMPTY_LINES) == len(SENTENCES)
    packed.write_bytes(gzip.compress(NO_TEXT["latin-1"]))
    with pytest.raises(TextError, match=rf"{packed}:5:9: byte 0xf6 is not UTF-8"):
        check_texts([packed])
    for damaged in (gzip.compress(GOOD)[:-6], GOOD, b"\0" * 9):
        packed.write_bytes(damaged)
        with pytest.raises(TextError, match=rf"{packed}:\d+: damaged"):
            check_texts([packed], NO_EMPTY_LINES)
    with pytest.raises(TextError, match=r"valid\.fr: no such file"):
        check_texts([plain.with_suffix(".fr")])
