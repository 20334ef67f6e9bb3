"""Unpack, read and clean text in two languages, and write its training, validation and test parts.

Text is read strictly, from plain files, NAME.gz, and the NAME.sgm of WMT test sets. Sentence pairs
of the training text are chosen, and what is dropped is counted by reason.
"""

import re
import unicodedata
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path

from highrank_plugins.common.blocks import BlockOptions, ConfigurationError, option
from highrank_plugins.common.files import write_json
from highrank_plugins.common.text_lines import (
    TextError,
    byte_lines,
    decoded,
    fold,
    paired,
    reserved_word,
)
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.archives import extract
from highrank_plugins.data.corpus_files import CorpusFiles, Texts

Pair = tuple[bytes, ...]  # a sentence and its translation
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")
_SET = re.compile(rb"<(?:src|ref)set\b[^>]*\bsetid=\"([^\"]*)\"", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)\d\d")
KEPT = "kept"
_NO_TEXT = frozenset({"Cc", "Cs", "Co", "Cn"})
REPORT = "cleaning.json"
# Empty pairs are 0.26 % of WMT14 En-De, and some copies lack them; WMT16 has 0.92 % more pairs.
_SIZES_DIFFER = 0.005


def read_pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """Yield lines that belong together, as bytes without their line feeds."""
    return paired(paths, map(read_lines, paths))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield lines without byte order marks; of a .sgm those that begin with <seg, as sacreBLEU."""
    wanted = set(_YEAR.findall(path.name))
    for number, line in byte_lines(path):
        line = line.removeprefix(BOM_UTF8)
        if ".sgm" not in path.suffixes:
            yield line
        elif line.startswith(b"<seg "):
            yield _SEGMENT.sub(rb"\1", line)
        elif wanted and (found := _SET.search(line)):
            # two test sets of WMT have equal numbers of sentences
            name = found[1].decode(errors="replace")
            if (there := set(_YEAR.findall(name))) and not wanted & there:
                raise TextError(
                    f"{path}:{number}: the set is {name}, of another year than the file's name "
                    "says; put the right test set here"
                )


class Rules(BlockOptions):
    """Say which sentence pairs of the training text are kept."""

    max_words: int = option(250, "Drop sentence pairs with more words on a side.", ge=1)
    max_ratio: float = option(9.0, "Drop sentence pairs whose length ratio exceeds this.", ge=1)
    limit: int | None = option(None, "Stop after N kept sentence pairs.", ge=1)


class Cleaner:
    """Check sentence pairs one by one, and count them by reason, or `KEPT`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.counts = Counter[str]()  # of pairs
        self.words = (Counter[str](), Counter[str]())

    def __call__(self, pair: Pair) -> tuple[str, str] | None:
        """Return the pair with folded white space, without control characters, if it is kept."""
        try:
            source, target = (_printable(line.decode("utf-8")) for line in pair)
        except UnicodeDecodeError:
            self._count("not UTF-8", [len(line.split()) for line in pair])
            return None
        words = [line.count(" ") + 1 if line else 0 for line in (source, target)]
        reason = self._reason(source, target, words)
        self._count(reason, words)
        return (source, target) if reason == KEPT else None

    def _count(self, reason: str, words: list[int]) -> None:
        self.counts[reason] += 1
        for counts, number in zip(self.words, words, strict=True):
            counts[reason] += number

    def _reason(self, source: str, target: str, words: list[int]) -> str:
        short, long = sorted(words)
        if not short:
            return "empty"
        if reserved_word(source) or reserved_word(target):
            return "with a word that fairseq reserves"
        if long > self.rules.max_words:
            return f"longer than {self.rules.max_words} words"
        if long > short * self.rules.max_ratio:
            return f"with one side {self.rules.max_ratio:g} times longer than the other"
        return KEPT


def _printable(line: str) -> str:
    """Fold runs of white space into one space; drop control, private and unassigned characters."""
    folded = fold(line)
    if folded.isprintable():
        return folded
    return fold("".join(c for c in folded if unicodedata.category(c) not in _NO_TEXT))


def texts_of(corpus: CorpusFiles, path: Path) -> Texts:
    """Return the texts that a `corpus.yaml` names."""
    if corpus.texts is None:
        raise ConfigurationError(f"{path}: has no block texts: [source, target] for each part")
    return corpus.texts


def unpack_texts(corpus: CorpusFiles, texts: Texts, archives: Path, output: Path) -> Iterator[str]:
    """Unpack only the text, each archive into a folder named after it; yield a line for each."""
    wanted = frozenset(texts.names())
    for name in corpus.files:
        extract(archives / name, output / name, wanted)
        files = [path for path in (output / name).rglob("*") if path.is_file()]
        yield f"{archives / name}: {len(files)} files, {sum(p.stat().st_size for p in files):,} B"
    for text in sorted(wanted):
        find_text(output, text)


def find_text(folder: Path, name: str) -> Path:
    """Find a file as archives name it, in the folder or in one of its folders."""
    for path in (folder / name, *(below / name for below in sorted(folder.glob("*/")))):
        if path.is_file():
            return path
    raise UserError(
        f"{folder}: found neither {name} nor FOLDER/{name}, which the corpus file names; put the "
        "text there, or give the corpus file of the text you have (in a recipe, --corpus FILE)"
    )


def words_of(language: str) -> str:
    """Return the entry of the report that counts all words of a language by reason."""
    return f"words of {language}"


def prepare_texts(
    texts: Texts, folder: Path, output: Path, languages: tuple[str, str], rules: Rules
) -> Iterator[str]:
    """Write `output`/{train,valid,test}.LANGUAGE, and pairs and words by reason in cleaning.json.

    The training text is cleaned. In the others only white space is folded, as sacreBLEU does it; no
    line is dropped.
    """
    for part in ("valid", "test"):
        copied = (pair for names in getattr(texts, part) for pair in _copied(folder, names))
        count = _write(copied, output, part, languages)
        _check_size(folder, part, count, getattr(texts, f"{part}_pairs"))
    cleaner = Cleaner(rules)
    report: dict[str, dict[str, int]] = {}
    for mode, names in zip(chain("w", repeat("a")), texts.train, strict=False):
        before = cleaner.counts.copy()
        _write(_cleaned(folder, names, cleaner), output, "train", languages, mode)
        report[names[0]] = dict(cleaner.counts - before)
        yield _say(names[0], report[names[0]])
    counts = report["all"] = dict(cleaner.counts)
    if not counts.get(KEPT):
        raise UserError(
            f"{folder}: cleaning has left no sentence pair of the training text: {counts}"
        )
    if counts[KEPT] != rules.limit:  # else the text was not read to its end
        _check_size(folder, "train", sum(counts.values()), texts.train_pairs, _SIZES_DIFFER)
    yield _say("all", counts)
    for language, words in zip(languages, cleaner.words, strict=True):
        report[words_of(language)] = dict(words)
    write_json(output / REPORT, report)


def _check_size(folder: Path, part: str, found: int, wanted: int | None, share: float = 0) -> None:
    """Refuse another corpus under the names of this one, by its number of pairs."""
    if wanted is not None and abs(found - wanted) > share * wanted:
        raise UserError(
            f"{folder}: the {part} text has {found:,} pairs, and the corpus file says "
            f"{part}_pairs: {wanted}: so it is another corpus, or a part. Put the whole text "
            "there, or give the corpus file of the text you have (in a recipe, --corpus FILE)"
        )


def _write(
    pairs: Iterable[tuple[str, str]],
    folder: Path,
    part: str,
    languages: tuple[str, str],
    mode: str = "w",
) -> int:
    """Write the source and the target file of a part; return the number of pairs."""
    number, paths = 0, [folder / f"{part}.{language}" for language in languages]
    source, target = (path.open(mode, encoding="utf-8", newline="\n") for path in paths)
    with source, target:
        for left, right in pairs:
            source.write(f"{left}\n")
            target.write(f"{right}\n")
            number += 1
    return number


def _copied(folder: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    paths = [find_text(folder, name) for name in names]
    for number, pair in enumerate(read_pairs(paths), 1):  # in a .sgm file, it counts segments
        lines = [fold(decoded(f"{p}:{number}", line)) for p, line in zip(paths, pair, strict=True)]
        if not all(lines):
            path = paths[lines.index("")]
            raise TextError(f"{path}:{number}: the sentence is empty; it would have no translation")
        yield lines[0], lines[1]


def _cleaned(folder: Path, names: list[str], cleaner: Cleaner) -> Iterator[tuple[str, str]]:
    for pair in read_pairs([find_text(folder, name) for name in names]):
        if cleaner.counts[KEPT] == cleaner.rules.limit:
            break
        if kept := cleaner(pair):
            yield kept


def _say(name: str, counts: dict[str, int]) -> str:
    gone = "; ".join(f"{n:,} {reason}" for reason, n in sorted(counts.items()) if reason != KEPT)
    kept = counts.get(KEPT, 0)
    return f"{name}: {kept:,} of {sum(counts.values()):,} pairs kept{gone and f' ({gone})'}"
