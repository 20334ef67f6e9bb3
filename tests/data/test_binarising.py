"""Binarised text is byte for byte what fairseq-preprocess writes."""

import os
import shutil
import subprocess
from itertools import count

import pytest
from fairseq.data import Dictionary

import highrank_plugins
from highrank_plugins.common.folders import NEW, output_folder
from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import binarising
from tests.fairseq_cli import run
from tests.tiny_corpus import TEXT

LANGUAGES = ("en", "de")
highrank_plugins.register()  # the hooks look at dictionaries


def content(folder):
    return {
        p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".bin", ".idx", ".txt")
    }


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Write the tiny text, with words that fairseq knows otherwise, and words of the test alone."""
    folder = tmp_path_factory.mktemp("pieces")
    for path in TEXT.iterdir():
        shutil.copy(path, folder)
    with (folder / "train.de").open("a") as file:
        file.write("<unk> seltsam\n")
    with (folder / "train.en").open("a") as file:
        file.write("a  b \n")
    return folder


@pytest.fixture(scope="module")
def stock(pieces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    prefixes = [w for p in binarising.PARTS for w in (f"--{p}pref", pieces / p)]
    languages = ("--source-lang", "en", "--target-lang", "de", "--joined-dictionary")
    run("preprocess", *prefixes, *languages, "--destdir", folder)
    return content(folder)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("processes", "block"), [(1, 1 << 20), (2, 1000), (1, 1)])
def test_the_files_equal_those_of_fairseq_byte_for_byte(
    pieces, stock, tmp_path, monkeypatch, processes, block
):
    monkeypatch.setattr(binarising, "_BLOCK", block)
    binarising.binarise(pieces, tmp_path, LANGUAGES, processes)
    assert content(tmp_path) == stock
    check = ["sha256sum", "--check", "sha256sums"]
    checked = subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
    assert len(checked.stdout.splitlines()) == len(stock) == 14


def test_blocks_cover_the_text_in_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "text"
    for text in b"", b"a\n", b"abc\nd\n\nefg\n", b"abc\nd":
        path.write_bytes(text)
        for size in (1, 3, 4, 5, 8, 9, 100):
            monkeypatch.setattr(binarising, "_BLOCK", size)
            lines = [line for part in binarising._blocks(path) for line in binarising._lines(part)]
            assert lines == (text.decode().removesuffix("\n").split("\n") if text else [])


def shorter(pieces, folder):
    """Write a shorter text, whose files differ from those of the whole one."""
    folder.mkdir()
    for path in pieces.iterdir():
        (folder / path.name).write_text("".join(path.read_text().splitlines(True)[:3]))
    binarising._words.cache_clear()
    return folder


def test_an_open_file_keeps_its_bytes_while_a_new_one_takes_its_place(pieces, tmp_path):
    output = tmp_path / "bin"
    binarising.binarise(pieces, output, LANGUAGES, 1)
    before = content(output)
    files = {path.name: path.open("rb") for path in output.iterdir()}
    binarising.binarise(shorter(pieces, tmp_path / "short"), output, LANGUAGES, 1)
    assert {name: files[name].read() for name in before} == before
    assert content(output)["train.en-de.en.bin"] != before["train.en-de.en.bin"]
    assert {path.name for path in output.iterdir()} == set(files)
    for file in files.values():
        file.close()


def test_an_interrupted_call_keeps_the_earlier_files(pieces, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    output = tmp_path / "bin"
    binarising.binarise(pieces, output, LANGUAGES, 1)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    short = shorter(pieces, tmp_path / "short")
    monkeypatch.setattr(binarising, "write_sums", interrupt)
    with pytest.raises(KeyboardInterrupt), output_folder(output):
        binarising.binarise(short, output, LANGUAGES, 1)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


@pytest.mark.parametrize(("moved", "has_earlier"), [(0, True), (7, True), (14, True), (7, False)])
def test_a_mix_of_earlier_and_new_files_is_refused_and_then_completed(
    pieces, tmp_path, monkeypatch, moved, has_earlier
):
    class Killed(BaseException):
        pass

    def replace(source, target):
        if os.path.basename(os.path.dirname(source)) == NEW and next(until_killed) == moved:
            raise Killed
        stock(source, target)

    output, short, stock, until_killed = tmp_path / "bin", tmp_path / "short", os.replace, count()
    shorter(pieces, short)
    if has_earlier:
        binarising.binarise(short, output, LANGUAGES, 1)
        binarising._words.cache_clear()
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Killed), output_folder(output):
        binarising.binarise(pieces, output, LANGUAGES, 1)
    with pytest.raises(UserError, match=r"files of two texts: .* run the same command again"):
        Dictionary.load(str(output / "dict.en.txt"))
    monkeypatch.setattr(os, "replace", stock)
    (short / "valid.de").write_text("")
    with pytest.raises(
        TextError, match="the file is empty"
    ):  # after it has completed the earlier call
        binarising.binarise(short, output, LANGUAGES, 1)
    binarising._words.cache_clear()
    binarising.binarise(pieces, tmp_path / "whole", LANGUAGES, 1)
    sums = (tmp_path / "whole" / "sha256sums").read_text()
    assert (output / "sha256sums").read_text() == sums
    assert content(output) == content(tmp_path / "whole")
    assert len(list(output.iterdir())) == 15


@pytest.mark.parametrize("name", ["dict.en.txt", "dict.de.txt", "sha256sums"])
def test_files_that_are_not_ours_are_refused_and_kept(pieces, tmp_path, name):
    text = f"{'0' * 64}  mine\n"
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name} is in the way: .* move it away"):
        binarising.binarise(pieces, tmp_path, LANGUAGES, 1)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text


def test_checksums_of_other_files_are_kept(pieces, tmp_path):
    binarising.binarise(pieces, tmp_path, LANGUAGES, 1)
    sums, line = tmp_path / "sha256sums", f"{'0' * 64}  valid1.en-de.en.bin\n"
    before = sums.read_text() + line
    sums.write_text(before)
    binarising.binarise(pieces, tmp_path, LANGUAGES, 1)
    assert sums.read_text() == before
