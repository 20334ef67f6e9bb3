"""Read text strictly, in one way for all commands; report bad text with file, line and column."""

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.user_error import UserError

MAX_WORDS = 1000  # fairseq's models have 1,024 positions
MAX_PIECES = 10 * MAX_WORDS
MOST_TYPES = 1_000_000  # different words that are counted, which bounds the memory
UNKNOWN = "<unk>"
# fairseq would take them for its own symbols, the last for what pads its dictionaries
_RESERVED = re.compile(r"(?<!\S)(?:<s>|<pad>|</s>|madeupword\d{4,})(?!\S)")
_UNKNOWN = re.compile(rf"(?<!\S){UNKNOWN}(?!\S)")
_REMOVE = "which fairseq reserves; remove it"
# left in text that nobody joined by SentencePiece, subword-nmt, WordPiece, GPT-2, others and Moses
PIECES = (
    r"▁\w", r"@@(?!\S)", r"(?<=\S )##\w", "</w>|[￭￨]", r"<0x[0-9A-F]{2}>",
    r"(?<!\S)@[-,.:/]@(?!\S)",  # below: Maltese has the letters Ġ and Ċ, too
    r"(?<!\S)Ġ\S+\s+(?:\S+\s+)?Ġ|(?<!\S)Ċ(?!\S)|[a-z]Ġ\w",
)  # fmt: skip
Line = TypeVar("Line")


class TextError(UserError):
    """Report unusable text: `file:line:column: what and what to do`."""


@dataclass(frozen=True)
class TextRules:
    """Hold what a line may be, beyond UTF-8 without NUL."""

    lower: bool = False  # convert to lower case first
    folded: bool = False  # fold white space first
    empty_lines: bool = True
    max_words: int | None = None
    unknown: bool = True  # accept <unk>, which training text must have if other text has it
    # accept output of other programs, with words that fairseq reserves, and with byte order marks
    # and carriage returns at starts and ends of lines
    foreign: bool = False

    def text_of(self, path: Path, number: int, line: bytes) -> str:
        """Return the text of a line, or raise TextError with its place."""
        place = f"{path}:{number}"
        if self.foreign:
            return decoded(place, line.removeprefix(BOM_UTF8).removesuffix(b"\r"))
        text = decoded(place, line)
        text = text.lower() if self.lower else text
        text = fold(text) if self.folded else text
        if problem := self._problem(text):
            raise TextError(f"{path}:{number}:{problem[0]}: {problem[1]}")
        return text

    def _problem(self, text: str) -> tuple[int, str] | None:
        """Return the column, in characters from 1, and the description of the first problem."""
        if "\r" in text:
            column = text.index("\r") + 1
            return column, "carriage return, which would split the line; remove it: tr -d '\\r'"
        if found := reserved_word(text):
            return found.start() + 1, f"the text has the word {found[0]}, {_REMOVE}"
        if not self.unknown and (found := _UNKNOWN.search(text)):
            return found.start() + 1, _not_trained(UNKNOWN)
        if not self.empty_lines and not text.strip():
            return 1, "empty line; remove it and its partner in the other file"
        most = len(text) if self.max_words is None else self.max_words
        if len(text) > 2 * most and (words := len(text.split())) > most:
            return 1, (
                f"{words:,} words, more than the {most:,} of a model; split the line, or remove it "
                "and its partner in the other file"
            )
        return None


PARALLEL = TextRules(max_words=MAX_WORDS)
NO_EMPTY_LINES = TextRules(max_words=MAX_WORDS, empty_lines=False)


def is_piece(word: str) -> bool:
    """Whether a word of a dictionary has a mark of pieces."""
    return any(re.search(pattern, f"x {word} {word}") for pattern in PIECES)


def fold(line: str) -> str:
    """Return a line with its words one space apart: fairseq splits text at any white space."""
    return " ".join(line.split())


def reserved_word(text: str) -> re.Match[str] | None:
    """Return the first word of a line that fairseq reserves."""
    return _RESERVED.search(text) if "<" in text or "madeupword" in text else None


def require_unreserved(sentence: str) -> str:
    """Return a sentence, or raise TextError if it has a word that fairseq reserves."""
    if found := reserved_word(sentence):
        raise TextError(f"the sentence {sentence[:60]!r} has the word {found[0]}, {_REMOVE}")
    return sentence


def decoded(place: str, line: bytes) -> str:
    """Return the text of a line, or raise TextError with place and column of the first bad byte."""
    if line.startswith(BOM_UTF8):  # files that are put together have it in any line
        raise TextError(
            f"{place}:1: byte order mark in the text; remove it: sed 's/^\\xef\\xbb\\xbf//'"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        byte = f"0x{line[error.start]:02x}"
        raise TextError(
            f"{place}:{column}: byte {byte} is not UTF-8; convert the file with iconv"
        ) from None
    if "\0" in text:
        raise TextError(f"{place}:{text.index(chr(0)) + 1}: NUL; remove it: tr -d '\\000'")
    return text


def byte_lines(path: Path, may_be_empty: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line of a file, plain or NAME.gz; only line feeds end one."""
    require_regular(path)
    if not path.is_file():
        there = sorted(other.name for other in path.parent.glob(f"{path.stem}.*"))[:8]
        has = f"; the folder has {', '.join(there)}" if there else ""
        raise TextError(f"{path}: no such file{has}")
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.removesuffix(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(
            f"{path}:{number + 1}: damaged ({error}); copy or compress it again"
        ) from None
    if not (number or may_be_empty):
        raise TextError(f"{path}: the file is empty")


def read_text(path: Path, rules: TextRules = TextRules()) -> Iterator[str]:
    """Yield the lines of a file, plain or NAME.gz; only line feeds end them."""
    number, has_words = 0, False
    for number, line in byte_lines(path):
        has_words = has_words or bool(line.strip())
        yield rules.text_of(path, number, line)
    if not (has_words or rules.foreign) and (rules.empty_lines or not number):
        raise TextError(f"{path}: {'no line has a word' if number else 'the file is empty'}")


def paired(paths: Sequence[Path], readers: Iterable[Iterable[Line]]) -> Iterator[tuple[Line, ...]]:
    """Yield line n of each file, as its reader has it; refuse empty files, and unequal ones."""
    number = 0
    for number, rows in enumerate(zip_longest(*readers), 1):
        if None in rows:
            shorter = paths[rows.index(None)]
            longer = next(p for p, row in zip(paths, rows, strict=True) if row is not None)
            raise TextError(
                f"{longer}:{number}: this line has no partner: {shorter} ends after line "
                f"{number - 1}; line n of one file must translate line n of the other"
            )
        yield rows
    if number == 0:
        raise TextError(f"{paths[0]}: the file is empty")


def check_texts(paths: Sequence[Path], rules: TextRules = TextRules()) -> int:
    """Read all bytes once and return the number of lines, the same in each file."""
    return sum(1 for _ in paired(paths, [read_text(path, rules) for path in paths]))


def counts_of(path: Path) -> str:
    """Return how many lines, words and different words a text has, and its longest line."""
    lines, tokens, longest, types = 0, 0, 0, set[bytes]()
    for _, line in byte_lines(path):
        words = line.split()
        lines += 1
        tokens, longest = tokens + len(words), max(longest, len(words))
        if len(types) < MOST_TYPES:
            types.update(words)
    more = "over " if len(types) >= MOST_TYPES else ""
    return (
        f"{lines:,} lines, {tokens:,} words of {more}{len(types):,} types, the longest line has "
        f"{longest:,}"
    )


def require_words(path: Path, vocabulary: Container[str]) -> None:
    """Raise TextError for the first word that training text lacks, which has no <unk> either."""
    for number, line in enumerate(read_text(path), 1):
        for found in re.finditer(r"\S+", line):
            if found[0] not in vocabulary:
                raise TextError(f"{path}:{number}:{found.start() + 1}: {_not_trained(found[0])}")


def _not_trained(word: str) -> str:
    return (
        f"the word {word!r} is not in the training text, which has no {UNKNOWN}, so its "
        f"probability would be meaningless; replace rare words of the training text by {UNKNOWN} "
        "(data lm-corpus --vocab-size and fairseq-preprocess --thresholdsrc do)"
    )
