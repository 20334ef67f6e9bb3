"""Read the words of a text, line by line, and count them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from highrank_plugins.common.text_lines import UNKNOWN, TextRules, read_text

END = "</s>"


def read_words(path: Path, lower: bool = False) -> Iterator[list[str]]:
    """Yield the words of each line of a file, plain or NAME.gz. A line may have none.

    Any white space separates words, as in fairseq; only line feeds end lines.

    Args:
        lower: convert to lower case.
    """
    return map(str.split, read_text(path, TextRules(lower=lower)))


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
        share = self.words[UNKNOWN] / self.tokens
        return (
            f"{name}: {self.lines:,} lines, {self.tokens:,} tokens with {END}, {self.types:,} "
            f"types, {share:.2%} {UNKNOWN}"
        )
