"""Count the sentences, words and tokens in the files of a run."""

import re
from pathlib import Path
from typing import Any

Tally = dict[str, int]
FIRST_SHARD = "shard01"  # the shard that measures a corpus's training perplexity
_TEXT = re.compile(r"(?:train|valid|test\d*)\.[\w-]+")
_INDEX = re.compile(r"(train|valid|test\d*)(?:\.[^.]+\.([\w-]+))?\.idx")
_HYPOTHESIS = re.compile(rb"([HP])-(\d+)\t(.*)", re.DOTALL)
_MAGIC = b"MMIDIDX\x00\x00"
_LENGTH_AT, _SIZES_AT = len(_MAGIC) + 9, len(_MAGIC) + 17
_BLOCK = 1 << 24  # bytes read at once
_BLANKS = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
_WIDE_BLANK = re.compile(  # the other blanks of str.split, in UTF-8
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)


def count_texts(folder: Path, in_pieces: bool = True) -> dict[str, Tally]:
    """Return the sentences of each text, with its tokens or, of text without pieces, its words."""
    paths = sorted(path for path in folder.glob("*.*") if _TEXT.fullmatch(path.name))
    found: dict[str, Tally] = {}
    for path in paths:
        lines, words = count_lines(path), _words(path)
        number = {"tokens": words + lines} if in_pieces else {"words": words}
        found[path.name] = {"sentences": lines, **number}
    return found


def _words(path: Path) -> int:
    """Return the number of words between blanks, of which fairseq makes tokens."""
    import numpy as np

    blanks = np.zeros(256, dtype=bool)
    blanks[list(_BLANKS)] = True
    count, before = 0, True
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK) + file.readline(), b""):  # whole characters
            text = _WIDE_BLANK.sub(b" ", block)
            blank = blanks[np.frombuffer(text, dtype=np.uint8)]
            count += int(np.count_nonzero(blank[:-1] & ~blank[1:])) + int(before and not blank[0])
            before = bool(blank[-1])
    return count


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def count_binarised(data: Path) -> dict[str, Tally]:
    """Return sentences and tokens of each split; those of all shards together."""
    found: dict[str, Tally] = {}
    whole = sorted(data.glob("*.idx"))
    for path in [*whole, *sorted(data.glob("shard*/train.idx"))]:
        match = _INDEX.fullmatch(path.name)
        sizes = sizes_of(path) if match else None
        if match is None or sizes is None:
            continue
        part = ".".join(filter(None, match.groups()))
        shard = [f"{FIRST_SHARD}/{part}"] if path.parent.name == FIRST_SHARD else []
        for name in [part, *shard]:
            so_far = found.setdefault(name, {"sentences": 0, "tokens": 0})
            so_far["sentences"] += len(sizes)
            so_far["tokens"] += int(sizes.sum())
    return found


def sizes_of(path: Path) -> Any:
    """Return the lengths of all lines, with their ends; None for fairseq's other formats."""
    import numpy as np

    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(_LENGTH_AT)
        count = int.from_bytes(file.read(_SIZES_AT - _LENGTH_AT), "little")
        return np.fromfile(file, dtype="<i4", count=count).astype(np.int64)


_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # of fairseq's mmap files


def count_words(index: Path) -> Any:
    """Return how often each number of the dictionary occurs in a binarised text."""
    import numpy as np

    with index.open("rb") as file:
        dtype = _DTYPES[file.read(_LENGTH_AT)[-1]]
    tokens = np.memmap(index.with_suffix(".bin"), dtype=dtype, mode="r")
    found = np.zeros(int(tokens.max(initial=0)) + 1, dtype=np.int64)
    for begin in range(0, len(tokens), _BLOCK):
        found += np.bincount(tokens[begin : begin + _BLOCK], minlength=len(found))
    return found


def count_hypotheses(output: Path) -> tuple[set[int], int]:
    """Return the numbers of the sentences with hypotheses, and the tokens of all hypotheses."""
    numbers: set[int] = set()
    tokens = 0
    with output.open("rb") as lines:
        for match in filter(None, map(_HYPOTHESIS.match, lines)):
            if match[1] == b"H":
                numbers.add(int(match[2]))
            else:
                tokens += len(match[3].split())
    return numbers, tokens
