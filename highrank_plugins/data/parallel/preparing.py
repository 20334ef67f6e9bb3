"""Unpack parallel text, and write its training, validation and test parts with a report."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from highrank_plugins.common.text_lines import TextError, decode_line, fold
from highrank_plugins.common.yaml_tree import ConfigurationError
from highrank_plugins.data.archives import ArchiveError, extract
from highrank_plugins.data.corpus_files import CorpusFiles, Texts
from highrank_plugins.data.parallel.cleaning import KEPT, Cleaner, Rules
from highrank_plugins.data.parallel.reading import read_pairs


def texts_of(corpus: CorpusFiles, path: Path) -> Texts:
    """Return the texts that a `corpus.yaml` names."""
    if corpus.texts is None:
        raise ConfigurationError(f"{path}: has no block texts: [source, target] for each part")
    return corpus.texts


def unpack_texts(corpus: CorpusFiles, texts: Texts, archives: Path, output: Path) -> Iterator[str]:
    """Unpack only the text, each archive into a folder named after it.

    Yields:
        What was done, a line for each archive.
    """
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
    raise ArchiveError(
        f"{folder}: found neither {name} nor FOLDER/{name}, which the corpus file names; put the "
        "text there, or give the corpus file of the text you have (in a recipe, --corpus FILE)"
    )


REPORT = "cleaning.json"
Report = dict[str, dict[str, int]]


def words_of(language: str) -> str:
    """Return the entry of the report that counts all words of a language by reason."""
    return f"words of {language}"


def prepare_texts(
    texts: Texts, folder: Path, output: Path, languages: tuple[str, str], rules: Rules
) -> Iterator[str]:
    """Write `output`/{train,valid,test}.LANGUAGE and the report `output`/cleaning.json.

    The training text is cleaned. In the others only white space is folded, as sacreBLEU does it; no
    line is dropped. The report counts pairs by reason, of each file and of all; and words of all.

    Yields:
        A line of the report for each training file.
    """
    from highrank_plugins.common.files import write_json

    for part, pairs, wanted in (
        ("valid", texts.valid, texts.valid_pairs),
        ("test", texts.test, texts.test_pairs),
    ):
        with _Files(output, part, languages) as files:
            found = sum(_copy(folder, names, files) for names in pairs)
        if wanted not in (None, found):
            raise _another_size(folder, part, found, wanted)
    cleaner = Cleaner(rules)
    report: Report = {}
    with _Files(output, "train", languages) as files:
        for names in texts.train:
            report[names[0]] = _clean(folder, names, cleaner, files)
            yield _say(names[0], report[names[0]])
    if not cleaner.counts[KEPT]:
        raise ValueError(
            f"{folder}: cleaning has left no sentence pair of the training text: "
            f"{dict(cleaner.counts)}"
        )
    _check_size(texts, folder, cleaner)
    report["all"] = dict(cleaner.counts)
    yield _say("all", report["all"])
    for language, words in zip(languages, cleaner.words, strict=True):
        report[words_of(language)] = dict(words)
    write_json(output / REPORT, report)


# Empty pairs are 0.26 % of WMT14 En-De, and some copies lack them; WMT16 has 0.92 % more pairs.
_SIZES_DIFFER = 0.005


def _check_size(texts: Texts, folder: Path, cleaner: Cleaner) -> None:
    """Refuse another corpus under the names of this one, by its number of pairs.

    A text that is read only up to a limit is not counted.
    """
    wanted, found = texts.train_pairs, cleaner.counts.total()
    limited = cleaner.counts[KEPT] == cleaner.rules.limit
    if wanted is None or limited or abs(found - wanted) <= _SIZES_DIFFER * wanted:
        return
    raise _another_size(folder, "train", found, wanted)


def _another_size(folder: Path, part: str, found: int, wanted: int | None) -> ValueError:
    return ValueError(
        f"{folder}: the {part} text has {found:,} pairs, and the corpus file says {part}_pairs: "
        f"{wanted}: so it is another corpus, or a part. Put the whole text there, or give the "
        "corpus file of the text you have (in a recipe, --corpus FILE)"
    )


class _Files:
    """Hold the source and the target file of a part, open for writing."""

    def __init__(self, folder: Path, part: str, languages: tuple[str, str]) -> None:
        self._paths = [folder / f"{part}.{language}" for language in languages]

    def __enter__(self) -> "_Files":
        self._files: list[IO[str]] = [
            path.open("w", encoding="utf-8", newline="\n") for path in self._paths
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def write(self, pair: tuple[str, str]) -> None:
        for file, line in zip(self._files, pair, strict=True):
            file.write(f"{line}\n")


def _copy(folder: Path, names: list[str], files: _Files) -> int:
    """Return the number of pairs."""
    paths = [find_text(folder, name) for name in names]
    number = 0
    for number, pair in enumerate(read_pairs(*paths), 1):
        files.write((_strict(paths[0], number, pair[0]), _strict(paths[1], number, pair[1])))
    return number


def _strict(path: Path, number: int, line: bytes) -> str:
    """Return a line with folded white space; in a .sgm file, `number` counts segments."""
    text = fold(decode_line(path, number, line))
    if not text:
        raise TextError(f"{path}:{number}: the sentence is empty; it would have no translation")
    return text


def _clean(folder: Path, names: list[str], cleaner: Cleaner, files: _Files) -> dict[str, int]:
    """Return counts of this pair of files."""
    before = cleaner.counts.copy()
    for pair in read_pairs(*(find_text(folder, name) for name in names)):
        if cleaner.counts[KEPT] == cleaner.rules.limit:
            break
        kept = cleaner(pair)
        if kept:
            files.write(kept)
    return dict(cleaner.counts - before)


def _say(name: str, counts: dict[str, int]) -> str:
    gone = "; ".join(f"{n:,} {reason}" for reason, n in sorted(counts.items()) if reason != KEPT)
    kept = counts.get(KEPT, 0)
    return f"{name}: {kept:,} of {sum(counts.values()):,} pairs kept{gone and f' ({gone})'}"
