"""Text and binarised data that are missing, damaged or of other words are refused, by name.

Commands and the hub read text as strictly as `highrank data`, before they write anything.
"""

import io
import shutil
import struct
from argparse import Namespace
from types import SimpleNamespace

import pytest
from fairseq import options, tasks
from fairseq.data import Dictionary, data_utils
from fairseq_cli import interactive, preprocess

from highrank_plugins.cli import evaluate
from highrank_plugins.common.files import write_sums
from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.data_checks import check_data
from tests.compat.conftest import config, train
from tests.data.test_bad_text import EVERYWHERE, GOOD
from tests.hooks.conftest import swap_words

SPLIT = "train.xx-yy.xx"


@pytest.fixture
def folder(data, tmp_path):
    """Return binarised data to damage, without checksums."""
    shutil.copytree(data, tmp_path / "bin", ignore=shutil.ignore_patterns("lm"))
    return tmp_path / "bin"


def load(folder):
    """Read dictionary and training text as tasks do; return the text."""
    dictionary = Dictionary.load(str(folder / "dict.xx.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / SPLIT), dictionary)
    return [dataset[index].tolist() for index in range(len(dataset))]


def change(path, place: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + len(value)] = value
    path.write_bytes(content)


DAMAGE = [
    ("bin", 2, b"\xff\xff", "it holds the word number 65535, but the dict"),
    ("bin", None, 100, r".*idx declares \d+ bytes, but it has 100"),
    ("idx", None, 0, "it does not begin like an index"),
    ("idx", None, 300, "it has 300 bytes, but declares 62 sentences"),
    ("idx", 17, b"\x7f", "its header"),
    ("idx", 18, struct.pack("<Q", 1 << 60), "it has .* declares 1152921504"),
    ("idx", 26, struct.pack("<i", -5), "sentence 0 has -5 numbers"),
    ("idx", 26 + 4 * 62 + 8, b"\x03", "sentence 1 has .* at byte"),
]


@pytest.mark.parametrize("sums", [False, True])
def test_a_damaged_file_is_named(data, tmp_path, sums):
    for number, (suffix, place, value, message) in enumerate(DAMAGE):
        folder = tmp_path / str(number)
        shutil.copytree(data, folder, ignore=shutil.ignore_patterns("lm"))
        path = folder / f"{SPLIT}.{suffix}"
        if sums:
            write_sums(folder)
            message += "|or was written after"
        if place is None:
            path.write_bytes(path.read_bytes()[:value])
        else:
            change(path, place, value)
        refusal = rf"{SPLIT}\.{suffix} is damaged[:,] ({message}).*; copy it again"
        with pytest.raises(UserError, match=refusal):
            load(folder)


def test_a_changed_word_is_detected_by_its_checksum(folder):
    text = load(folder)
    write_sums(folder)
    content = (folder / f"{SPLIT}.bin").read_bytes()
    change(folder / f"{SPLIT}.bin", 0, content[4:6])
    with pytest.raises(ValueError, match=r"xx\.bin is damaged, or was written after .*sha256sums"):
        load(folder)
    (folder / "sha256sums").unlink()
    assert load(folder) != text
    write_sums(folder)
    change(folder / "dict.xx.txt", 0, b"X")
    with pytest.raises(ValueError, match=r"dict\.xx\.txt is damaged, or was written after"):
        load(folder)


def test_a_bad_dictionary_is_refused(folder):
    path = folder / "dict.xx.txt"
    whole = path.read_bytes()
    for content, message in (
        (whole + b"sch\xf6n 3\n", r"byte \d+ is not UTF-8; copy it again"),
        (b"\xef\xbb\xbf" + whole, "1:1: byte order mark"),
        *((whole + b"word %s\n" % count, ".*word") for count in (b"-3", b"9" * 27, b"x", b"")),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"dict\.xx\.txt: {message}"):
            load(folder)


def test_another_dictionary_is_refused(folder, tmp_path):
    second = shutil.copytree(folder, tmp_path / "second")
    options = config("training", f"{folder}:{second}", "--arch", "transformer").task
    tasks.setup_task(options)
    swap_words(second / "dict.yy.txt")
    with pytest.raises(UserError, match=f"{second} was binarised with .*dict.yy.txt, whose words"):
        tasks.setup_task(options)
    dictionary = Dictionary.load(str(folder / "dict.xx.txt"))
    data_utils.load_indexed_dataset(str(folder / SPLIT), dictionary)
    swap_words(folder / "dict.xx.txt")  # binarised again after the dictionary was read
    with pytest.raises(UserError, match=f"{folder} was binarised with .*dict.xx.txt, whose words"):
        data_utils.load_indexed_dataset(str(folder / SPLIT), dictionary)


@pytest.mark.parametrize("missing", ["xx.bin", "yy.idx", "yy.*"])
def test_a_missing_file_is_named(folder, missing):
    for path in folder.glob(f"train.xx-yy.{missing}"):
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"{missing[:2]}\.(bin|idx) is missing, although train"
    ):
        train(folder, folder / "save")


def test_missing_data_are_named(folder):
    options = Namespace(task="translation", source_lang=None, target_lang=None)
    for place, message in {
        f"{folder}:{folder}/other": r"DATA .*other: no such directory\. Give the",
        f"{folder}/..": "no sentence pairs, such as train",
    }.items():
        with pytest.raises(UserError, match=message):
            check_data(options, place)
    line = ["--arch", "transformer", "-s", "xx", "-t"]
    with pytest.raises(FileNotFoundError, match=r"dict\.fr\.txt"):
        tasks.setup_task(config("training", folder, *line, "fr").task)


def run(corpus, *words):
    names = [w for p in ("train", "valid", "test") for w in (f"--{p}pref", f"{corpus}/{p}")]
    parsed = options.get_preprocessing_parser().parse_args([*names, *words])
    parsed.destdir = str(corpus / "out")
    preprocess.main(parsed)


@pytest.fixture
def corpus(tmp_path):
    for part in ("train", "valid", "test"):
        for end in ("", ".en", ".de"):
            (tmp_path / f"{part}{end}").write_bytes(GOOD)
    return tmp_path


@pytest.mark.parametrize("fault", EVERYWHERE)
def test_bad_text_is_refused_before_anything_is_written(corpus, fault):
    (corpus / "test.de").write_bytes(EVERYWHERE[fault])
    with pytest.raises(TextError, match=r"test\.(de|en)(:\d|: no line|: the file is empty)"):
        run(corpus, "-s", "en", "-t", "de")
    assert not (corpus / "out").exists()


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
def test_words_that_a_language_model_never_sees_are_refused(corpus, word, train, options, refused):
    (corpus / "train").write_bytes(GOOD + train)
    (corpus / "valid").write_bytes(GOOD + f"one {word}\n".encode())
    if not refused:
        return run(corpus, "--only-source", *options)
    with pytest.raises(TextError, match=rf"valid:10:5: the word '{word}' is not in the training"):
        run(corpus, "--only-source", *options)


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
    monkeypatch.setattr("sys.stdin", None)  # as in Python, where a shell has closed it
    assert not [*interactive.buffered_read("-", 1)]
    for part in "_model", "_run":
        monkeypatch.setattr(evaluate, part, lambda *_: [])
    evaluate.translate(tmp_path)


def test_a_language_model_that_would_be_ignored_is_refused():
    options = SimpleNamespace(lm_path="lm.pt")
    for cfg in options, SimpleNamespace(generation=options):
        with pytest.raises(UserError, match="--lm-path has no effect in fairseq-interactive"):
            interactive.main(cfg)
