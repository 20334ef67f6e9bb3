"""Text files of all kinds to clean parallel text, the reasons of what is dropped, and refusals."""

import gzip
import json

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import parallel
from highrank_plugins.data.corpus_files import Texts, read_corpus
from highrank_plugins.data.parallel import KEPT, Cleaner, Rules, read_lines
from tests.recipes.wmt_corpus import BAD, lines, publish, sgm

TEXTS = Texts(train=[["t.en", "t.de"]], valid=[["v.en", "v.de"]], test=[["s.en", "s.de"]])


@pytest.fixture
def folder(tmp_path):
    """Write valid files for TEXTS; a test damages some."""
    (tmp_path / "files").mkdir()
    (tmp_path / "out").mkdir()
    for name in TEXTS.names():
        (tmp_path / "files" / name).write_bytes(b"one line\nand a second\n")
    return tmp_path / "files"


def prepare(folder, texts=TEXTS, **rules):
    output = folder.parent / "out"
    said = list(parallel.prepare_texts(texts, folder, output, ("en", "de"), Rules(**rules)))
    return said, {path.name: path.read_bytes() for path in output.iterdir()}


def test_archives_become_text_with_a_report(tmp_path):
    corpus = read_corpus(publish(tmp_path / "published"))
    list(parallel.unpack_texts(corpus, corpus.texts, tmp_path / "published", tmp_path / "files"))
    assert not list((tmp_path / "files").rglob("*cs-en*"))
    (tmp_path / "out").mkdir()
    said, files = prepare(tmp_path / "files", corpus.texts)
    for language in ("en", "de"):
        expected = b"".join(b" ".join(line.split()) + b"\n" for line in lines("test", language))
        assert files[f"test.{language}"] == expected
        assert len(files[f"train.{language}"].splitlines()) == 250
    report = json.loads(files["cleaning.json"])
    assert report["training/web.de-en.en"] == {"kept": 150} | {reason: 1 for *_, reason in BAD}
    assert report["all"]["kept"] == 250
    for language in ("en", "de"):
        words = report[f"words of {language}"]
        assert words["kept"] == len(files[f"train.{language}"].split())
        assert words.keys() == report["all"].keys()
    assert said[0].startswith("training/web.de-en.en: 150 of 154 pairs kept (1 empty; 1 longer")
    assert said[1] == "giga.en.gz: 100 of 100 pairs kept"


def test_a_text_of_another_size_than_the_published_one_is_refused(folder):
    def sized(part, found, published, **rules):
        last = b"\n" if part == "train" else b"a\n"
        for name in getattr(TEXTS, part)[0]:
            (folder / name).write_bytes(b"one line\n" * (found - 1) + last)
        return prepare(folder, TEXTS.model_copy(update={f"{part}_pairs": published}), **rules)[1]

    for name in TEXTS.names():  # byte order marks are no text
        (folder / name).write_bytes(b"\xef\xbb\xbfone line\n\xef\xbb\xbfand a second\n")
    _, files = prepare(folder, TEXTS.model_copy(update={"valid_pairs": 2, "test_pairs": 2}))
    del files["cleaning.json"]
    assert len(files) == 6 and {*files.values()} == {b"one line\nand a second\n"}
    for found in (995, 1000, 1005):  # a copy may lack the empty pairs
        sized("train", found, 1000)
    sized("train", 900, 1000, limit=5)
    for part, found in (("train", 994), ("train", 1006), ("valid", 1001), ("test", 999)):
        with pytest.raises(
            ValueError, match=rf"the {part} text has {found:,} pairs.* says {part}_pairs: 1000"
        ):
            sized(part, found, 1000)


def test_what_cannot_be_cleaned_is_named(folder):
    packed = TEXTS.model_copy(update={"train": [["t.en.gz", "t.de.gz"]]})
    for name in ("t.en.gz", "t.de.gz"):
        (folder / name).write_bytes(gzip.compress(b"line\n" * 1000, mtime=0)[:-10])
    with pytest.raises(UserError, match=r"t\.en\.gz:\d+: damaged"):
        prepare(folder, packed)
    left = r"cleaning has left no sentence pair of the training text: \{'longer"
    with pytest.raises(UserError, match=left):
        prepare(folder, max_words=1)
    for name in ("t.en", "t.de"):
        (folder / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"t\.en: the file is empty"):
        prepare(folder)
    (folder / "v.de").unlink()
    with pytest.raises(
        UserError, match=r"found neither v\.de nor FOLDER/v\.de, which the corpus fi"
    ):
        prepare(folder)


def test_segments_equal_those_of_sacrebleu_and_another_year_is_refused(tmp_path):
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    sentences = [b"A &amp; B", b"  two  spaces ", "Größe\u00a0x".encode(), b"a <seg> b", b"<seg"]
    path = tmp_path / "a.sgm"
    path.write_bytes(sgm(sentences, "refset"))
    FakeSGMLDataset("ours", langpairs={})._convert_format(str(path), str(tmp_path / "theirs"))
    ours = [" ".join(line.decode().split()) for line in read_lines(path)]
    assert ours == (tmp_path / "theirs").read_text().removesuffix("\n").split("\n")
    assert len(ours) == len(sentences)
    year, any_year = tmp_path / "newstest2014-deen-src.en.sgm", tmp_path / "test.en.sgm"
    text = '<srcset setid="{}" srclang="any">\n<seg id="1">A</seg>\n</srcset>\n'
    for path, name in ((any_year, "newstest2016"), (year, "news"), (year, "newstest2014")):
        path.write_text(text.format(name))
        assert list(read_lines(path)) == [b"A"]
    year.write_text(text.format("newstest2016"))
    with pytest.raises(ValueError, match=rf"{year}:1: the set is newstest2016, of another year"):
        list(read_lines(year))


def clean(*pairs: str, **rules: object):
    """Return which pairs, written as `source|target`, are kept, and the cleaner."""
    cleaner = Cleaner(Rules(**rules))
    encoded = [pair.encode("utf-8", "surrogateescape").split(b"|") for pair in pairs]
    return [kept for pair in encoded if (kept := cleaner(tuple(pair)))], cleaner


@pytest.mark.parametrize(
    ("pair", "reason", "words"),
    [
        ("caf\udce9 noir|Kaffee", "not UTF-8", (2, 1)),
        ("empty|\u2003\r", "empty", (1, 0)),
        ("a a a a|b b b", "longer than 3 words", (4, 3)),
        ("a|b b b", "with one side 2 times longer than the other", (1, 3)),
        ("a a a|b", "with one side 2 times longer than the other", (3, 1)),
    ],
)
def test_a_dropped_pair_is_counted_with_its_reason(pair, reason, words):
    kept, cleaner = clean("yes|ja", pair, max_words=3, max_ratio=2.0)
    assert kept == [("yes", "ja")]
    assert cleaner.counts == {KEPT: 1, reason: 1}
    assert cleaner.words == tuple({KEPT: 1, reason: count} for count in words)


def test_what_is_kept_has_folded_space_and_no_control_characters(folder):
    pairs = ["a a a|b b b", "a a|b", "a|b b"]  # at the limits
    assert clean(*pairs, max_words=3, max_ratio=2.0)[0] == [tuple(p.split("|")) for p in pairs]
    kept, _ = clean(" a\u00a0b\u2028c\rd |e\0f\ue000 g\u200dh\u00adi")
    assert kept == [("a b c d", "ef g\u200dh\u00adi")]  # a joiner and a soft hyphen are text
    for language in ("en", "de"):
        (folder / f"t.{language}").write_bytes(b"\n1\n2\n3\n")
    assert prepare(folder, limit=2)[1]["train.en"] == b"1\n2\n"  # the limit counts kept pairs
