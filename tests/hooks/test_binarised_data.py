"""Test hooks/binarised_data.py."""

import logging
import shutil
import struct

import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils

from highrank_plugins.common.checksums import write_sums
from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import config, run_training, translation_options
from tests.fairseq_cli import attempt

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


def test_data_without_checksums_is_loaded_with_one_message(folder, caplog):
    caplog.set_level(logging.INFO)
    load(folder)
    load(folder)
    assert caplog.text.count("has no sha256sums") == 1


def test_dictionaries_alone_need_no_checksums(folder, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shutil.copy(folder / "dict.xx.txt", tmp_path / "dict.xx.txt")
    Dictionary.load(str(tmp_path / "dict.xx.txt"))
    assert "sha256sums" not in caplog.text


def test_data_with_checksums_is_loaded_silently(folder, caplog):
    caplog.set_level(logging.INFO)
    write_sums(folder)
    load(folder)
    assert "sha256sums" not in caplog.text


OLD = {
    "cut": (b"TNTIDX\0\0" + bytes(8), r"fairseq cannot read it \(AssertionError"),
    "huffman": (b"HUFFIDX\0\0", r"\.vocab, .*missing"),
}


@pytest.mark.parametrize("kind", OLD)
def test_formats_that_fairseq_cannot_read_are_refused(folder, kind):
    content, reason = OLD[kind]
    (folder / f"{SPLIT}.idx").write_bytes(content)
    with pytest.raises(UserError, match=rf"{SPLIT}\.idx is damaged: .*{reason}.*; copy it again"):
        load(folder)


DAMAGE = {
    "number": (
        "bin",
        2,
        b"\xff\xff",
        r"\.bin is damaged: it holds the word number 65535, but the dict",
    ),
    "cut": ("bin", None, 100, r"\.bin is damaged: .*idx declares \d+ bytes, but it has 100"),
    "empty": ("bin", None, 0, r"\.bin is damaged: .* it has 0"),
    "no index": ("idx", None, 0, r"\.idx is damaged: it does not begin like an index"),
    "half a header": ("idx", None, 20, r"\.idx is damaged: its header"),
    "cut index": (
        "idx",
        None,
        300,
        r"\.idx is damaged: it has 300 bytes, but declares 62 sentences",
    ),
    "magic": ("idx", 0, b"X", r"\.idx is damaged: it does not begin"),
    "type": ("idx", 17, b"\x7f", r"\.idx is damaged: its header"),
    "count": (
        "idx",
        18,
        struct.pack("<Q", 1 << 60),
        r"\.idx is damaged: it has .* declares 1152921504",
    ),
    "size 0": ("idx", 26, struct.pack("<i", 0), r"\.idx is damaged: sentence 0 has 0 numbers"),
    "negative": ("idx", 26, struct.pack("<i", -5), r"\.idx is damaged: sentence 0 has -5 numbers"),
    "pointer": ("idx", 26 + 4 * 62 + 8, b"\x03", r"\.idx is damaged: sentence 1 has .* at byte"),
}


@pytest.mark.parametrize("suffix, place, value, message", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("sums", [False, True])
def test_a_damaged_file_is_named(folder, suffix, place, value, message, sums):
    path = folder / f"{SPLIT}.{suffix}"
    if sums:
        write_sums(folder)
    if place is None:
        path.write_bytes(path.read_bytes()[:value])
    else:
        change(path, place, value)
    with pytest.raises(
        ValueError, match=message + rf"|\.{suffix} is damaged, or was written after"
    ):
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


def test_a_dictionary_that_is_not_utf8_is_refused(folder):
    with (folder / "dict.xx.txt").open("ab") as file:
        file.write(b"sch\xf6n 3\n")
    with pytest.raises(UserError, match=r"dict\.xx\.txt: byte \d+ is not UTF-8; copy it again"):
        load(folder)


def test_a_dictionary_with_a_byte_order_mark_is_refused(folder):
    path = folder / "dict.xx.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(UserError, match=r"1:1: byte order mark"):
        load(folder)


@pytest.mark.parametrize("count", ["-3", "9" * 27, "x", ""])
def test_bad_counts_in_a_dictionary_are_refused(folder, count):
    with (folder / "dict.xx.txt").open("a") as file:
        file.write(f"word {count}\n")
    with pytest.raises(ValueError, match=r"dict\.xx\.txt: .*word"):
        load(folder)


def test_a_changed_dictionary_is_detected_by_its_checksum(folder):
    write_sums(folder)
    change(folder / "dict.xx.txt", 0, b"X")
    with pytest.raises(ValueError, match=r"dict\.xx\.txt is damaged, or was written after"):
        load(folder)


def swap_two_words(dictionary) -> None:
    first, second, *others = dictionary.read_text().splitlines(keepends=True)
    dictionary.write_text("".join([second, first, *others]))


def test_a_folder_that_is_binarised_again_after_its_dictionary_was_read_is_refused(folder):
    dictionary = Dictionary.load(str(folder / "dict.xx.txt"))
    data_utils.load_indexed_dataset(str(folder / SPLIT), dictionary)
    swap_two_words(folder / "dict.xx.txt")
    with pytest.raises(UserError, match=f"{folder} was binarised with .*dict.xx.txt, whose words"):
        data_utils.load_indexed_dataset(str(folder / SPLIT), dictionary)


def test_a_second_folder_with_another_dictionary_is_refused_at_the_start(folder, tmp_path):
    second = shutil.copytree(folder, tmp_path / "second")
    options = config("training", f"{folder}:{second}", "--arch", "transformer").task
    tasks.setup_task(options)
    swap_two_words(second / "dict.yy.txt")
    with pytest.raises(UserError, match=f"{second} was binarised with .*dict.yy.txt, whose words"):
        tasks.setup_task(options)


@pytest.mark.parametrize("missing", ["xx.bin", "yy.bin", "yy.idx", "yy.*"])
def test_a_missing_file_is_named(folder, missing):
    for path in folder.glob(f"train.xx-yy.{missing}"):
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"{missing[:2]}\.(bin|idx) is missing, although train"
    ):
        run_training(folder, folder / "save", *translation_options())


def test_fairseq_train_compares_checksums(mt_data, tmp_path):
    shutil.copytree(mt_data, tmp_path / "mt")
    write_sums(tmp_path / "mt")
    for path in (tmp_path / "mt").glob("*.bin"):
        change(path, 0, bytes([path.read_bytes()[0] ^ 1]))
    tiny = ["--arch", "transformer_tiny", "--optimizer", "adam", "--max-tokens", 500]
    done = attempt("train", tmp_path / "mt", *tiny, "--save-dir", tmp_path / "save")
    assert done.code != 0
    assert ".bin is damaged, or was written after" in done.output
