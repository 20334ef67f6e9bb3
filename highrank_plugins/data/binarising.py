"""Write and count numbers of words as fairseq-preprocess does, text in several processes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.files import write_sums, write_text
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.processes import batches, ordered_map
from highrank_plugins.common.text_lines import (
    MAX_PIECES,
    UNKNOWN,
    TextRules,
    check_texts,
    read_text,
)
from highrank_plugins.common.user_error import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Block = tuple[NDArray, NDArray]  # numbers of words, and the lengths of their lines

PARTS = ("train", "valid", "test")
# number of lines that a process takes at once
BATCH = 5_000
# fairseq pads dictionaries to a multiple of this, which suits GPUs
_PADDING_FACTOR = 8
# fairseq's symbols before the words of a dictionary: <s>, <pad>, </s>, <unk>
SPECIAL = 4
END_NUMBER = 2
UNKNOWN_NUMBER = 3
_MAGIC = b"MMIDIDX\x00\x00"
_LENGTH_AT, _SIZES_AT = len(_MAGIC) + 9, len(_MAGIC) + 17
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # of fairseq's mmap files


def binarise(
    pieces: Path, folder: Path, languages: tuple[str, ...], processes: int
) -> Iterator[str]:
    """Write one dictionary and the numbers of all text as fairseq-preprocess does; yield counts.

    The bytes are those of `--joined-dictionary`, of one language those of `--only-source
    --padding-factor 1`: a language model would give words of padding probability.
    """
    texts = {part: [pieces / f"{part}.{name}" for name in languages] for part in PARTS}
    lines = {"train": check_texts(texts["train"], TextRules(max_words=MAX_PIECES))}
    from fairseq.data import Dictionary  # seconds, of which a missing file needs none

    counts = Counter[str]()
    train = batches(chain.from_iterable(map(read_text, texts["train"])), BATCH)
    for counted in ordered_map(_count, train, processes):
        counts.update(counted)
    rules = TextRules(max_words=MAX_PIECES, unknown=UNKNOWN in counts)
    lines |= {part: check_texts(texts[part], rules) for part in PARTS[1:]}
    from tqdm import tqdm

    yield f"dictionary: {len(counts):,} types of {counts.total():,} tokens, by falling count"
    prefixes, dictionaries = _names(languages)
    made = Dictionary()
    for word, count in counts.items():
        made.add_symbol(word, count)
    made.finalize(padding_factor=_PADDING_FACTOR if len(languages) > 1 else 1)
    for language, name in zip(languages, dictionaries, strict=True):
        dictionary = folder / name
        made.save(str(dictionary))
        for part in PARTS:
            text = pieces / f"{part}.{language}"
            work, total = partial(_number, dictionary), -(-lines[part] // BATCH)
            done = ordered_map(work, batches(read_text(text), BATCH), processes)
            shown = tqdm(done, text.name, total, unit="batch", **bar_options())
            prefix = folder / prefixes[part, language]
            count, tokens, unknown = write_split(prefix, shown, len(_words(dictionary)))
            if 2 * unknown > (words := tokens - count):
                raise UserError(
                    f"{text}: {unknown:,} of {words:,} words are unknown, so no score of this text "
                    "would mean anything; give text in the language and pieces of the training text"
                )
            yield report(text.name, count, tokens, unknown)
    write_sums(folder)


def report(name: str, lines: int, tokens: int, unknown: int, *, more: str = "") -> str:
    """Return what a part of a text holds, as all commands say it."""
    share = f"{unknown / tokens:.2%} unknown"
    return f"{name}: {lines:,} lines, {tokens:,} tokens with </s>, {more}{share}"


def _names(languages: tuple[str, ...]) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return the names of fairseq's files, by part and language, and of its dictionaries."""
    if len(languages) == 1:
        return {(part, languages[0]): part for part in PARTS}, ["dict.txt"]
    pair = "-".join(languages)
    prefixes = {(p, name): f"{p}.{pair}.{name}" for p in PARTS for name in languages}
    return prefixes, [f"dict.{language}.txt" for language in languages]


def _count(lines: list[str]) -> Counter[str]:
    # Counter takes one iterator over all words faster than one per line
    return Counter(chain.from_iterable(map(str.split, lines)))


def _number(dictionary: Path, lines: list[str]) -> "Block":
    return number(_words(dictionary), lines)


def number(words: dict[str, int], lines: list[str]) -> "Block":
    """Return the numbers of all words, </s> after each line, and the lengths of lines."""
    import numpy as np

    rows = [line.split() for line in lines]
    numbers = [words.get(word, UNKNOWN_NUMBER) for row in rows for word in (*row, "</s>")]
    lengths = [len(row) + 1 for row in rows]
    return np.array(numbers, dtype=np.int32), np.array(lengths, dtype=np.int32)


@cache
def _words(dictionary: Path) -> dict[str, int]:
    """Return word → number, read here since importing fairseq takes seconds in each process."""
    words = {"<s>": 0, "<pad>": 1, "</s>": END_NUMBER, "<unk>": UNKNOWN_NUMBER}
    with dictionary.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, SPECIAL):
            words[line.rpartition(" ")[0]] = number
    return words


def write_dictionary(path: Path, counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Write `dict.txt`, the most frequent word first, and return the number of each word."""
    rows = list(counts)
    write_text(path, "".join(f"{word} {count}\n" for word, count in rows))
    return {word: SPECIAL + place for place, (word, _) in enumerate(rows)}


def write_split(prefix: Path, blocks: Iterable["Block"], num_words: int) -> tuple[int, int, int]:
    """Write `prefix`.bin and `prefix`.idx; return how many lines, tokens and <unk>."""
    import numpy as np
    from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

    dtype = best_fitting_int_dtype(num_words)
    sizes: list[NDArray] = []
    unknown = 0
    with open(f"{prefix}.bin", "wb") as file:
        for numbers, lengths in blocks:
            file.write(numbers.astype(dtype).tobytes())
            sizes.append(lengths)
            unknown += int(np.count_nonzero(numbers == UNKNOWN_NUMBER))
    lengths = np.concatenate(sizes)
    with MMapIndexedDataset.Index.writer(f"{prefix}.idx", dtype) as index:
        # Python's integers: fairseq sums them, and 32 bits may overflow
        index.write(lengths.tolist())
    return len(lengths), int(lengths.sum()), unknown


def sizes_of(path: Path) -> Any:
    """Return the lengths of all lines, with their ends; None for fairseq's other formats."""
    import numpy as np

    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(_LENGTH_AT)
        count = int.from_bytes(file.read(_SIZES_AT - _LENGTH_AT), "little")
        return np.fromfile(file, dtype="<i4", count=count).astype(np.int64)


def count_words(index: Path) -> Any:
    """Return how often each number of the dictionary occurs in a binarised text."""
    import numpy as np

    with index.open("rb") as file:
        dtype = _DTYPES[file.read(_LENGTH_AT)[-1]]
    tokens = np.memmap(index.with_suffix(".bin"), dtype=dtype, mode="r")
    found = np.zeros(int(tokens.max(initial=0)) + 1, dtype=np.int64)
    for begin in range(0, len(tokens), 1 << 24):
        found += np.bincount(tokens[begin : begin + (1 << 24)], minlength=len(found))
    return found
