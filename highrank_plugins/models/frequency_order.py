"""Mixtape gives the first S classes gates of their own: the dictionary must be sorted by count."""

from itertools import pairwise

from fairseq.data import Dictionary

PADDING = "madeupword0000"


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
    end = dictionary.indices.get(PADDING, len(dictionary))
    return dictionary.count[dictionary.nspecial : end]
