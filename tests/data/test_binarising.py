"""Binarised text is byte for byte what fairseq-preprocess writes."""

import re
import shutil
import subprocess

import pytest

import highrank_plugins
from highrank_plugins.common.folders import new_folder
from highrank_plugins.data import binarising
from tests.fairseq_cli import run
from tests.tiny_corpus import TEXT

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
    for language, line in (("de", "<unk> seltsam\n"), ("en", "a  b ")):  # without a line feed
        with (folder / f"train.{language}").open("a") as file:
            file.write(line)
    return folder


@pytest.mark.timeout(120)
def test_the_files_equal_those_of_fairseq_byte_for_byte(pieces, tmp_path, monkeypatch):
    prefixes = [w for p in binarising.PARTS for w in (f"--{p}pref", pieces / p)]
    languages = ("--source-lang", "en", "--target-lang", "de", "--joined-dictionary")
    run("preprocess", *prefixes, *languages, "--destdir", tmp_path / "stock")
    stock = content(tmp_path / "stock")
    for processes, lines in ((1, 5000), (2, 99), (1, 1)):
        monkeypatch.setattr(binarising, "BATCH", lines)
        with new_folder(ours := tmp_path / f"{lines}") as new:
            list(binarising.binarise(pieces, new, ("en", "de"), processes))
        assert content(ours) == stock
        check = ["sha256sum", "--check", "sha256sums"]
        checked = subprocess.run(check, cwd=ours, check=True, capture_output=True)
        assert len(checked.stdout.splitlines()) == len(stock) == 14


def test_one_language_is_data_for_a_language_model(pieces, tmp_path):
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    with new_folder(ours) as new:
        said = list(binarising.binarise(pieces, new, ("de",), 1))
    prefixes = [w for p in binarising.PARTS for w in (f"--{p}pref", pieces / f"{p}.de")]
    run("preprocess", *prefixes, "--only-source", "--padding-factor", 1, "--destdir", stock)
    assert content(ours) == content(stock) and (ours / "train.bin").exists()
    assert [line.partition(" lines")[0] for line in said[1:]] == [
        f"{part}.de: {len((pieces / f'{part}.de').read_text().splitlines()):,}"
        for part in binarising.PARTS
    ]
    assert said[1].endswith(" 0.04% unknown")  # its <unk>
    assert re.fullmatch(r"dictionary: [\d,]+ types of [\d,]+ tokens, by falling count", said[0])
