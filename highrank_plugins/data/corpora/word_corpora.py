"""Prepare corpora of words that are published ready to use: the Penn Treebank and WikiText-2.

A line is its words and </s>, which fairseq-preprocess also appends to an empty line. The counts are
then equal to those of the AWD-LSTM's code (Merity et al. 2018), which calls it <eos>.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import write_json
from highrank_plugins.common.text_lines import UNKNOWN, read_text, require_words
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.binarising import report
from highrank_plugins.data.corpora import CorpusOptions

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class WordCorpus:
    """Hold names of the files, see `find_splits`, and what is known of the published text."""

    layouts: tuple[str, ...]
    tokens: dict[str, int]  # of each split, with the ends of lines
    types: int
    # MD5 of each split as published, where lines are " word word \\n"
    digests: dict[str, str] = field(default_factory=dict)


# Mikolov's version: lower case, numbers as N, the 10,000 most frequent words
PTB = WordCorpus(
    layouts=(
        "{split}.txt",
        "ptb.{split}.txt",
        "data/ptb.{split}.txt",
        "simple-examples/data/ptb.{split}.txt",
    ),
    tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    types=10_000,
    digests={  # as torchtext publishes them
        "train": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
        "valid": "aa0affc06ff7c36e977d7cd49e3839bf",
        "test": "8b80168b89c18661a38ef683c0dc3721",
    },
)
WIKITEXT2 = WordCorpus(
    layouts=("wiki.{split}.tokens", "wikitext-2/wiki.{split}.tokens", "{split}.txt"),
    tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
    types=33_278,
)


def read_words(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a file, plain or NAME.gz, separated by any white space."""
    return map(str.split, read_text(path))


@dataclass
class WordCounts:
    """Count each word, and the lines, each of which ends with </s>."""

    words: Counter[str] = field(default_factory=Counter)
    lines: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of words and ends of lines: what a language model predicts."""
        return self.words.total() + self.lines

    @property
    def types(self) -> int:
        """Return the number of different tokens, including </s>."""
        return len(self.words) + 1

    def add(self, lines: Iterable[list[str]]) -> "WordCounts":
        """Count lines; returns itself."""
        for words in lines:
            self.words.update(words)
            self.lines += 1
        return self

    def most_frequent(self, size: int) -> list[str]:
        """Return the `size` most frequent words besides <unk>; sort equal counts alphabetically."""
        ranked = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        return list(islice((word for word, _ in ranked if word != UNKNOWN), size))

    def report(self, name: str) -> str:
        """Return a line for people."""
        unknown, more = self.words[UNKNOWN], f"{self.types:,} types, "
        return report(name, self.lines, self.tokens, unknown, more=more)


def prepare(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Write `output`/{train,valid,test}.txt with single spaces, and counts.json; yield counts."""
    corpus = {"ptb": PTB, "wikitext2": WIKITEXT2}[name]
    files = find_splits(data, corpus.layouts)
    counts = _count(corpus, files, options)
    train = WordCounts().add(islice(read_words(files["train"]), options.max_train_lines))
    vocabulary = set(train.most_frequent(options.vocab_size or train.types))
    if len(vocabulary) == len(train.words):  # no word becomes <unk>
        for split in SPLITS[1:]:
            require_words(files[split], vocabulary)
    limits = {"train": options.max_train_lines}
    written = {}
    for split, path in files.items():
        lines = islice(read_words(path), limits.get(split))
        written[split] = write_words(output / f"{split}.txt", lines, vocabulary)
    write_json(
        output / "counts.json",
        {f"{split}.txt": _report(counts[split], count) for split, count in written.items()},
    )
    for split, count in written.items():
        left = counts[split].lines - count.lines
        left_out = f"; {left:,} lines after --max-train-lines are left out" if left else ""
        yield count.report(split) + left_out


def _report(read: WordCounts, written: WordCounts) -> dict[str, dict[str, Any]]:
    lines, tokens = read.lines - written.lines, read.tokens - written.tokens
    left_out = {"after max_train_lines": {"sentences": lines, "tokens": tokens}}
    return {
        "in": {"sentences": read.lines, "tokens": read.tokens},
        "out": {"sentences": written.lines, "tokens": written.tokens},
        "left out": left_out if lines else {},
    }


def _count(
    corpus: WordCorpus, files: dict[str, Path], options: CorpusOptions
) -> dict[str, WordCounts]:
    """Return the counts of each split, which must be the published text."""
    digests = {split: hashlib.md5(usedforsecurity=False) for split in files}
    counts = {
        split: WordCounts().add(_digested(read_words(path), digests[split]))
        for split, path in files.items()
    }
    for split, path in files.items():
        what = f"{path}: tokens, with </s>"
        options.require_known(counts[split].tokens, corpus.tokens[split], what)
    options.require_known(counts["train"].types, corpus.types, f"{files['train']}: types")
    for split, known in corpus.digests.items():
        what = f"{files[split]}: MD5 of the words and their order"
        options.require_known(digests[split].hexdigest(), known, what)
    return counts


def _digested(lines: Iterable[list[str]], digest: "hashlib._Hash") -> Iterator[list[str]]:
    """Yield lines, and add them to a digest in the form of the published files."""
    for words in lines:
        digest.update(f" {' '.join(words)} \n".encode())
        yield words


def write_words(path: Path, lines: Iterable[list[str]], vocabulary: set[str]) -> WordCounts:
    """Write lines of words, with <unk> for those that the vocabulary lacks, and count them."""
    counts = WordCounts()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for words in lines:
            kept = [word if word in vocabulary else UNKNOWN for word in words]
            counts.add([kept])
            file.write(" ".join(kept) + "\n")
    return counts


def find_splits(data: Path, layouts: tuple[str, ...]) -> dict[str, Path]:
    """Return the file of each split, plain or with .gz; the first layout with a training file."""
    for layout in layouts:
        if _there(data / layout.format(split="train")):
            paths = {split: data / layout.format(split=split) for split in SPLITS}
            found = {split: _there(path) for split, path in paths.items()}
            if missing := [path for split, path in paths.items() if not found[split]]:
                raise UserError(f"neither {missing[0]} nor {missing[0]}.gz exists: put it there")
            return {split: path for split, path in found.items() if path}
    names = ", ".join(layout.format(split="{" + ",".join(SPLITS) + "}") for layout in layouts)
    raise UserError(
        f"--data {data}: no training text; put the files there under one of these names, plain or "
        f"with .gz: {names}"
    )


def _there(path: Path) -> Path | None:
    compressed = path.with_name(f"{path.name}.gz")
    return next((each for each in (path, compressed) if each.is_file()), None)
