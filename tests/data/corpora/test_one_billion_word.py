"""One Billion Word: the vocabulary over all shards, and files equal to fairseq-preprocess's."""

from collections import Counter

import pytest

from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.corpora import CorpusOptions
from highrank_plugins.data.corpora.one_billion_word import ARCHIVE, HELDOUT, TRAIN
from tests.data.corpora import made
from tests.data.corpora.made import prepare
from tests.fairseq_cli import run

NAME = "one_billion_word"
OPTIONS = CorpusOptions(other_text=True, vocab_size=12)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return made.one_billion(tmp_path_factory.mktemp("1b"))


@pytest.fixture(scope="module")
def output(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("out")
    prepare(NAME, data, output, OPTIONS)
    return output


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def lower_text(data, pattern, *numbers):
    return "".join((data / ARCHIVE / pattern.format(n)).read_text() for n in numbers).lower()


def test_shards_are_data_directories_of_fairseq_with_the_most_frequent_words(data, output):
    counts = Counter(lower_text(data, TRAIN, *made.SHARDS).split())
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:12]
    written = (output / "dict.txt").read_text()
    assert written == "".join(f"{word} {count}\n" for word, count in rows)
    names = [f"shard{n:02}" for n in made.SHARDS]
    assert sorted(path.name for path in output.iterdir() if path.is_dir()) == names
    for name in names:
        folder = output / name
        assert (folder / "dict.txt").read_bytes() == (output / "dict.txt").read_bytes()
        assert (folder / "train.bin").exists() and (folder / "train.idx").exists()
    assert (output / "shard01" / "valid.bin").read_bytes() == (output / "valid.bin").read_bytes()
    assert not (output / "shard02" / "valid.bin").exists()


def test_files_equal_those_of_fairseq_preprocess(data, output, tmp_path):
    texts = {
        "train": (output / "shard02", lower_text(data, TRAIN, 2)),
        "valid": (output, lower_text(data, HELDOUT, 0, 10)),
        "test": (output, lower_text(data, HELDOUT, 20, 30, 40)),
    }
    for split, (_, text) in texts.items():
        (tmp_path / split).write_text(text)
    prefixes = [word for split in texts for word in (f"--{split}pref", tmp_path / split)]
    dictionary = ["--srcdict", output / "dict.txt"]
    run("preprocess", "--only-source", *prefixes, *dictionary, "--destdir", tmp_path / "bin")
    for split, (folder, _) in texts.items():
        for name in (f"{split}.bin", f"{split}.idx"):
            assert (folder / name).read_bytes() == (tmp_path / "bin" / name).read_bytes(), name


def test_processes_write_the_same_files_from_the_folder_inside_the_archive(data, output, tmp_path):
    options = CorpusOptions(other_text=True, vocab_size=12, workers=2)
    said = prepare(NAME, data / ARCHIVE, tmp_path / "out", options)
    assert files(tmp_path / "out") == files(output)
    words = lower_text(data, HELDOUT, 0, 10).split()
    kept = {row.split()[0] for row in (output / "dict.txt").read_text().splitlines()}
    share = sum(word not in kept for word in words) / (len(words) + 20)
    assert said[0] == f"valid: 20 lines, {len(words) + 20} tokens with </s>, {share:.2%} unknown"
    assert said[2].startswith("train, 3 shards: 180 lines")
    assert said[3].endswith("of which 12 are kept")


@pytest.mark.parametrize(
    ("shards", "missing", "message"),
    [
        ((), None, "news.en-00001-of-00100 does not exist"),
        ((1,), HELDOUT.format(30), "news.en.heldout-00030-of-00050 does not exist"),
    ],
)
def test_missing_files_are_named(tmp_path, shards, missing, message):
    data = made.one_billion(tmp_path / "data", shards)
    if missing:
        (data / ARCHIVE / missing).unlink()
    with pytest.raises(UserError, match=message):
        prepare(NAME, data, tmp_path / "out")


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_in_a_shard_is_named(tmp_path, workers):
    data = made.one_billion(tmp_path / "data")
    path = data / ARCHIVE / TRAIN.format(2)
    path.write_bytes(path.read_bytes() + b"sch\xf6n\n")
    with pytest.raises(TextError, match=r"news\.en-00002-of-00100:61:4: byte 0xf6 is not UTF-8"):
        prepare(NAME, data, tmp_path / "out", CorpusOptions(other_text=True, workers=workers))


def test_other_options_and_missing_shards_are_refused(data, tmp_path):
    for options, message in (
        ({"other_text": True, "max_train_lines": 5}, "does not support --max-train-lines"),
        ({}, "files: expected 99, found 3"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(NAME, data, tmp_path / "out", CorpusOptions(**options))
