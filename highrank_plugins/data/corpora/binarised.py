"""Write files as fairseq-preprocess does, from numbers that arrive piece by piece."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from highrank_plugins.common.files import write_text

# fairseq's symbols before the words of a dictionary: <s>, <pad>, </s>, <unk>
SPECIAL = 4
END_NUMBER = 2
UNKNOWN_NUMBER = 3


def write_dictionary(path: Path, counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Write `dict.txt`, the most frequent word first, and return the number of each word."""
    rows = list(counts)
    write_text(path, "".join(f"{word} {count}\n" for word, count in rows))
    return {word: SPECIAL + place for place, (word, _) in enumerate(rows)}


def write_split(prefix: Path, pieces: Iterable[Sequence[int]], num_words: int) -> int:
    """Write `prefix`.bin and `prefix`.idx, a piece at a time.

    Pieces are lines to fairseq; a task of streams puts them back together. Nothing is added to
    them: </s> must be in them where it is wanted.

    Args:
        num_words: of the dictionary, with the special ones.
    Returns:
        The number of tokens.
    """
    import torch
    from fairseq.data import indexed_dataset

    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=num_words)
    tokens = 0
    for piece in pieces:
        numbers = torch.as_tensor(piece, dtype=torch.int32)
        builder.add_item(numbers)
        tokens += len(numbers)
    builder.finalize(f"{prefix}.idx")
    return tokens
