"""Choose sentence pairs of a training text, and count by reason what is dropped."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from highrank_plugins.common.text_lines import reserved_word
from highrank_plugins.data.parallel.reading import Pair

KEPT = "kept"
_NO_TEXT = frozenset({"Cc", "Cs", "Co", "Cn"})


@dataclass(frozen=True)
class Rules:
    """Hold the requirements of a sentence pair of the training text.

    Attributes:
        max_words: longest line, in words between white space.
        max_ratio: largest ratio of the two lines' numbers of words.
        drop_duplicates: keep the first of equal pairs; needs about 110 bytes for each pair.
        limit: stop after this number of kept pairs.
    """

    max_words: int = 250
    max_ratio: float = 9.0
    drop_duplicates: bool = False
    limit: int | None = None


class Cleaner:
    """Check sentence pairs one by one.

    Attributes:
        counts: how many pairs were kept, and how many were dropped for each reason.
        words: the same in words, of source and target.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.counts = Counter[str]()
        self.words = (Counter[str](), Counter[str]())
        self._seen: set[bytes] = set()

    def __call__(self, pair: Pair) -> tuple[str, str] | None:
        """Return the pair with folded white space, without control characters, if it is kept."""
        try:
            source, target = (fold(line.decode("utf-8")) for line in pair)
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
        if self.rules.drop_duplicates and self._is_known(source, target):
            return "duplicate"
        return KEPT

    def _is_known(self, source: str, target: str) -> bool:
        key = blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
        if key in self._seen:
            return True
        self._seen.add(key)
        return False


def fold(line: str) -> str:
    """Fold runs of white space into one space; drop control, private and unassigned characters."""
    folded = " ".join(line.split())
    if folded.isprintable():
        return folded
    kept = "".join(c for c in folded if unicodedata.category(c) not in _NO_TEXT)
    return " ".join(kept.split())
