"""Check that the dictionary is sorted by count: Mixtape's first S classes have their own gates."""

import re
from itertools import pairwise

from fairseq.data import Dictionary

# fairseq-preprocess rounds the size of a dictionary up with these, at its end, with count 0
PADDING = re.compile(r"madeupword\d{4}")
# of a symbol that a task adds after loading
ADDED = 1


def require_sorted_by_count(dictionary: Dictionary) -> None:
    """Check the entries that were read from a file; special and padding symbols have no count.

    Raises:
        ValueError: counts that rise (names the line), or that are all the same.
    """
    counts = _file_counts(dictionary)
    for line, (previous, count) in enumerate(pairwise(counts), start=2):
        if count > previous:
            word = dictionary[dictionary.nspecial + line - 1]
            raise ValueError(
                f"dictionary: not sorted by count: line {line} ({word!r}) has {count}, the line "
                f"before {previous}, but mixtape gives gates of their own to the most frequent "
                "classes. Sort it (sort -s -k2,2nr dict.txt) and binarise again with it, or set "
                "--head-frequent-ratio 0"
            )
    if len(counts) > 1 and counts[0] == counts[-1]:
        raise ValueError(
            f"dictionary: all {len(counts)} counts are {counts[0]}, so the most frequent classes "
            "are unknown. Recount (fairseq-preprocess without --srcdict and --tgtdict does), or "
            "set --head-frequent-ratio 0"
        )


def _file_counts(dictionary: Dictionary) -> list[int]:
    """Return counts of the lines up to the padding; only a task's symbols may follow."""
    start, after = dictionary.nspecial, len(dictionary)
    while after > start and dictionary.count[after - 1] == ADDED:
        after -= 1
    end = after
    while end > start and _is_padding(dictionary, end - 1):
        end -= 1
    # a reversed dictionary begins with its padding
    is_reversed = end == start and after < len(dictionary)
    if end == after or is_reversed:
        return dictionary.count[start:]
    return dictionary.count[start:end]


def _is_padding(dictionary: Dictionary, index: int) -> bool:
    return dictionary.count[index] == 0 and bool(PADDING.fullmatch(dictionary[index]))
