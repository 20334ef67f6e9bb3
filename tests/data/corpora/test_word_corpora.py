"""Penn Treebank and WikiText-2: layouts, counts, small vocabularies, what is refused."""

import gzip
import hashlib
from collections import Counter
from dataclasses import replace

import pytest

from highrank_plugins.common.text_lines import TextError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.corpora import CorpusOptions
from highrank_plugins.data.corpora import word_corpora as module
from tests.data.corpora import made
from tests.data.corpora.made import prepare
from tests.fairseq_cli import run


def tokens_as_awd_lstm_counts(path):
    """Count words and one <eos> per line, as the corpus class of its code does."""
    with path.open(encoding="utf-8") as file:
        return [word for line in file for word in [*line.split(), "<eos>"]]


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


def published(corpus, paths, **more):
    """Return the corpus as if the text of these files were the published one."""
    tokens = {split: tokens_as_awd_lstm_counts(path) for split, path in paths.items()}
    counts = {split: len(found) for split, found in tokens.items()}
    return replace(corpus, tokens=counts, types=len(set(tokens["train"])), **more)


def test_the_published_words_and_their_order_are_required(tmp_path, monkeypatch):
    data = made.ptb(tmp_path / "data", "{}.txt")
    paths = {split: data / f"{split}.txt" for split in module.SPLITS}
    digests = {  # invented text has spaces as the published one
        split: hashlib.md5(path.read_bytes()).hexdigest() for split, path in paths.items()
    }
    monkeypatch.setattr(module, "PTB", published(module.PTB, paths, digests=digests))
    assert len(prepare("ptb", data, tmp_path / "out", CorpusOptions())) == 3
    first, second, *others = paths["test"].read_text().splitlines()
    for changed in ([second, first, *others], [first.replace("the", "a", 1), second, *others]):
        (data / "test.txt").write_text("\n".join(changed) + "\n")
        with pytest.raises(UserError, match=r"test\.txt: MD5 of the words and their order: exp"):
            prepare("ptb", data, tmp_path / "out", CorpusOptions())
    assert len(prepare("ptb", data, tmp_path / "out")) == 3


def test_the_published_counts_are_required(tmp_path):
    with pytest.raises(UserError, match="expected 929589, found") as refused:
        prepare("ptb", made.ptb(tmp_path / "data"), tmp_path / "out", CorpusOptions())
    assert "--other-text accepts it" in str(refused.value)
    assert "--set corpus.other_text=true" in str(refused.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_published_text_passes(tmp_path, monkeypatch):
    data = made.wikitext2(tmp_path / "data")
    paths = {split: data / f"wikitext-2/wiki.{split}.tokens" for split in made.LINES}
    known = published(module.WIKITEXT2, paths)
    monkeypatch.setattr(module, "WIKITEXT2", known)
    assert len(prepare("wikitext2", data, tmp_path / "out", CorpusOptions())) == 3
    monkeypatch.setattr(module, "WIKITEXT2", replace(known, types=known.types + 1))
    with pytest.raises(UserError, match="types: expected"):
        prepare("wikitext2", data, tmp_path / "out", CorpusOptions())


def test_fairseq_counts_every_line_of_wikitext2_even_empty_ones(tmp_path):
    from fairseq.data import Dictionary, data_utils

    data = made.wikitext2(tmp_path / "data")
    prepare("wikitext2", data, tmp_path / "out")
    text, target = tmp_path / "out", tmp_path / "bin"
    prefixes = [x for s in made.LINES for x in (f"--{s}pref", text / f"{s}.txt")]
    run("preprocess", "--only-source", "--padding-factor", 1, *prefixes, "--destdir", target)
    dictionary = Dictionary.load(str(target / "dict.txt"))
    for split in made.LINES:
        tokens = tokens_as_awd_lstm_counts(data / f"wikitext-2/wiki.{split}.tokens")
        lines = data_utils.load_indexed_dataset(str(target / split), dictionary)
        assert sum(len(lines[i]) for i in range(len(lines))) == len(tokens)
        assert lines[0].tolist() == [dictionary.eos()]
    train = tokens_as_awd_lstm_counts(data / "wikitext-2/wiki.train.tokens")
    assert len(dictionary) == len(set(train)) + 2  # <s> and <pad>


def test_a_small_vocabulary_replaces_rare_words(tmp_path):
    data = made.ptb(tmp_path / "data")
    options = CorpusOptions(other_text=True, vocab_size=6, max_train_lines=50)
    prepare("ptb", data, tmp_path / "out", options)
    given = (data / "ptb.train.txt").read_text().splitlines()[:50]
    counts = Counter(word for line in given for word in line.split() if word != "<unk>")
    kept = {word for word, _ in sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:6]}
    assert (tmp_path / "out" / "train.txt").read_text() == "".join(
        " ".join(word if word in kept else "<unk>" for word in line.split()) + "\n"
        for line in given
    )
    test = (tmp_path / "out" / "test.txt").read_text()
    assert set(test.split()) <= kept | {"<unk>"}
    assert len(test.splitlines()) == made.LINES["test"]


def test_missing_corpora_files_and_folders_are_named(tmp_path):
    data = made.ptb(tmp_path / "data")
    (data / "ptb.valid.txt").unlink()
    (tmp_path / "empty").mkdir()
    for name, folder, message in (
        ("ptb", "data", r"neither .*ptb\.valid\.txt nor .*\.gz exists"),
        ("wikitext2", "empty", r"no training text; put the files .*wiki\.\{train,valid,test\}"),
        ("ptb", "nowhere", "nowhere: no such folder"),
        ("ptp", "data", "no corpus 'ptp'; did you mean 'ptb'"),
        ("own", "data", "no corpus 'own'; of your own: highrank new DIR --language-model"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(name, tmp_path / folder, tmp_path / "out")


def test_a_word_that_cannot_be_predicted_is_refused(tmp_path):
    data = made.ptb(tmp_path / "data", "{}.txt")
    for path in data.iterdir():
        path.write_text(path.read_text().replace("<unk>", "x"))
    with (data / "valid.txt").open("a") as file:
        file.write("the zebra\n")
    with pytest.raises(TextError, match=r"valid\.txt:25:5: the word 'zebra' is not in the train"):
        prepare("ptb", data, tmp_path / "out")
    prepare("ptb", data, tmp_path / "out", CorpusOptions(other_text=True, vocab_size=5))
    assert (tmp_path / "out" / "valid.txt").read_text().endswith("the <unk>\n")
