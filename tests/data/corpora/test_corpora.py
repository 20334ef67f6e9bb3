"""The published corpora as their recipes prepare them: layouts, counts, bytes, what is refused."""

import gzip
import hashlib
from collections import Counter
from dataclasses import replace

import pytest
from fairseq.data import Dictionary, data_utils

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.corpora import CorpusOptions, one_billion_word
from highrank_plugins.data.corpora import word_corpora as module
from highrank_plugins.data.corpora.one_billion_word import ARCHIVE, HELDOUT, TRAIN
from tests.data.corpora import made
from tests.data.corpora.made import OTHER, prepare
from tests.fairseq_cli import run

ONE_BILLION = "one_billion_word"
PUBLISHED = CorpusOptions()


def tokens_as_awd_lstm_counts(path):
    """Count words and one <eos> per line, as the corpus class of its code does."""
    with path.open(encoding="utf-8") as file:
        return [word for line in file for word in [*line.split(), "<eos>"]]


def other(**options):
    return CorpusOptions(other_text=True, **options)


# -- Penn Treebank and WikiText-2 --


@pytest.mark.parametrize(
    "name",
    ["{}.txt", "ptb.{}.txt", "data/ptb.{}.txt", "simple-examples/data/ptb.{}.txt", "{}.txt.gz"],
)
def test_words_of_every_layout_are_written_unchanged_and_counted(tmp_path, name):
    data = made.ptb(tmp_path / "data", name.removesuffix(".gz"))
    given = {split: (data / name.removesuffix(".gz").format(split)) for split in made.LINES}
    tokens = tokens_as_awd_lstm_counts(given["train"])
    texts = {split: path.read_text().splitlines() for split, path in given.items()}
    for path in given.values() if name.endswith(".gz") else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    share = tokens.count("<unk>") / len(tokens)
    assert prepare("ptb", data, tmp_path / "out")[0] == (
        f"train: 120 lines, {len(tokens)} tokens with </s>, {len(set(tokens))} types, "
        f"{share:.2%} unknown"
    )
    for split, count in made.LINES.items():
        lines = (tmp_path / "out" / f"{split}.txt").read_text().splitlines()
        assert lines == [line.strip() for line in texts[split]] and len(lines) == count


@pytest.mark.parametrize("name", ["ptb", "wikitext2"])
def test_the_published_words_and_their_order_are_required(tmp_path, monkeypatch, name):
    is_ptb = name == "ptb"
    data = made.ptb(tmp_path, "{}.txt") if is_ptb else made.wikitext2(tmp_path)
    paths = {
        s: data / (f"{s}.txt" if is_ptb else f"wikitext-2/wiki.{s}.tokens") for s in made.LINES
    }
    tokens = {split: tokens_as_awd_lstm_counts(path) for split, path in paths.items()}
    digests = {  # invented text has spaces as the published one
        split: hashlib.md5(path.read_bytes()).hexdigest() for split, path in paths.items()
    }
    known = replace(
        vars(module)[name.upper()], types=len(set(tokens["train"])),
        tokens={split: len(found) for split, found in tokens.items()},
        **({"digests": digests} if is_ptb else {}),
    )  # fmt: skip
    monkeypatch.setattr(module, name.upper(), known)
    assert len(prepare(name, data, tmp_path / "out", PUBLISHED)) == 3
    first, second, *others = paths["test"].read_text().splitlines()
    for changed in ([second, first], [first.replace("the", "a", 1), second]) if is_ptb else ():
        paths["test"].write_text("\n".join([*changed, *others]) + "\n")
        with pytest.raises(UserError, match=r"test\.txt: MD5 of the words and their order: exp"):
            prepare(name, data, tmp_path / "out", PUBLISHED)
    assert len(prepare(name, data, tmp_path / "out")) == 3
    monkeypatch.setattr(module, name.upper(), replace(known, types=known.types + 1))
    with pytest.raises(UserError, match="types: expected"):
        prepare(name, data, tmp_path / "out", PUBLISHED)


def test_a_small_vocabulary_replaces_rare_words_and_others_must_be_known(tmp_path):
    data, out = made.ptb(tmp_path / "data", "{}.txt"), tmp_path / "out"
    prepare("ptb", data, out, other(vocab_size=6, max_train_lines=50))
    given = (data / "train.txt").read_text().splitlines()[:50]
    counts = Counter(word for line in given for word in line.split() if word != "<unk>")
    kept = {word for word, _ in sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:6]}
    assert (out / "train.txt").read_text() == "".join(
        " ".join(word if word in kept else "<unk>" for word in line.split()) + "\n"
        for line in given
    )
    test = (out / "test.txt").read_text()
    assert set(test.split()) <= kept | {"<unk>"} and len(test.splitlines()) == made.LINES["test"]
    for path in data.iterdir():
        path.write_text(path.read_text().replace("<unk>", "x"))
    with (data / "valid.txt").open("a") as file:
        file.write("the zebra\n")
    with pytest.raises(UserError, match=r"valid\.txt:25:5: the word 'zebra' is not in the train"):
        prepare("ptb", data, out)
    prepare("ptb", data, out, other(vocab_size=5))
    assert (out / "valid.txt").read_text().endswith("the <unk>\n")


# -- One Billion Word --


def lower_text(data, pattern, *numbers):
    return "".join((data / ARCHIVE / pattern.format(n)).read_text() for n in numbers).lower()


def test_shards_have_the_bytes_of_fairseq_and_the_most_frequent_words(tmp_path, monkeypatch):
    data, output = made.one_billion(tmp_path / "data"), tmp_path / "out"
    monkeypatch.setattr(one_billion_word, "usable_cores", lambda: 1)
    prepare(ONE_BILLION, data, output, other(vocab_size=12))
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
    texts = {
        "train": (output / "shard02", lower_text(data, TRAIN, 2)),
        "valid": (output, held_out := lower_text(data, HELDOUT, 0, 10)),
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

    # two processes, from the folder inside of the archive
    two = tmp_path / "two"
    monkeypatch.setattr(one_billion_word, "usable_cores", lambda: 2)
    said = prepare(ONE_BILLION, data / ARCHIVE, two, other(vocab_size=12))
    ours = [path.relative_to(output) for path in output.rglob("*.*")]
    assert sorted(ours) == sorted(path.relative_to(two) for path in two.rglob("*.*"))
    assert all((two / name).read_bytes() == (output / name).read_bytes() for name in ours)
    words, kept = held_out.split(), dict(rows)
    share = sum(word not in kept for word in words) / (len(words) + 20)
    assert said[0] == f"valid: 20 lines, {len(words) + 20} tokens with </s>, {share:.2%} unknown"
    assert said[2].startswith("train, 3 shards: 180 lines")
    assert said[3].endswith("of which 12 are kept")


# -- text8 --


def test_the_three_parts_make_up_the_text_and_the_dictionary_is_sorted(tmp_path):
    data, out = made.text8(tmp_path / "data"), tmp_path / "out"
    said = prepare("text8", data, out)
    whole = (data / "text8").read_text()
    parts = {"train": whole[:3600], "valid": whole[3600:3800], "test": whole[3800:]}
    dictionary = Dictionary.load(str(out / "dict.txt"))
    for split, text in parts.items():
        items = data_utils.load_indexed_dataset(str(out / split), dictionary)
        numbers = [number for i in range(len(items)) for number in items[i].tolist()]
        assert "".join(dictionary[number] for number in numbers).replace("_", " ") == text
    assert said[0].startswith("train: 3,600 characters without </s>")
    rows = [row.split() for row in (out / "dict.txt").read_text().splitlines()]
    train = parts["train"].replace(" ", "_")
    assert {word: int(count) for word, count in rows} == {c: train.count(c) for c in set(train)}
    assert rows == sorted(rows, key=lambda row: (-int(row[1]), row[0]))
    assert rows[0][0] == "_"


def characters(text):
    return lambda folder: (folder / "text8").write_text(text)


def without(path, write):
    def written(folder):
        write(folder)
        (folder / path).unlink()

    return written


def bad_shard(folder):
    path = made.one_billion(folder) / ARCHIVE / TRAIN.format(2)
    path.write_bytes(path.read_bytes() + b"sch\xf6n\n")


HELD_OUT = f"{ARCHIVE}/{HELDOUT.format(30)}"
BAD_BYTE = r"news\.en-00002-of-00100:61:4: byte 0xf6 is not UTF-8"


@pytest.mark.parametrize(
    ("name", "write", "options", "message"),
    [
        ("ptb", made.ptb, PUBLISHED,
         "929589, found.* --other-text accepts it.*--set corpus.other_text=true"),
        ("ptb", without("ptb.valid.txt", made.ptb), OTHER, r"neither .*ptb\.valid\.txt nor .*\.gz"),
        ("wikitext2", made.ptb, OTHER, r"no training text; put the files .*wiki\.\{train,valid,te"),
        (ONE_BILLION, without(HELD_OUT, made.one_billion), OTHER, "heldout-00030-of-00050 does no"),
        (ONE_BILLION, bad_shard, OTHER, BAD_BYTE),
        (ONE_BILLION, made.one_billion, other(max_train_lines=5), "does not support --max-train-l"),
    (ONE_BILLION, made.one_billion, PUBLISHED, "files: expected 99, found 3"),
        ("text8", characters("abc\n" * 20), OTHER, "has the byte 0x0a, but text8 has only a to z"),
        ("text8", made.ptb, OTHER, r"text8 does not exist: put the file text8 of text8\.zi"),
    ("text8", characters("ab" * 40 + "zzzz"), OTHER, "test has 'z', which does not occur in t"),
    ],
)  # fmt: skip
def test_a_corpus_that_is_not_the_published_one_is_refused(tmp_path, name, write, options, message):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    with pytest.raises(UserError, match=f"(?s){message}"):
        prepare(name, tmp_path / "data", tmp_path / "out", options)
    assert not any((tmp_path / "out").glob("*.txt"))
