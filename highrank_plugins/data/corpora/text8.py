"""Prepare text8: 100 million characters of Wikipedia; 90 % train, 5 % validate, 5 % test.

Characters are the words of fairseq's dictionary, a space is `_`. The text is one stream without any
</s>: every character is predicted from what is before it, the very first from the </s> with which
the task begins. A loss in bits per token is therefore one in bits per character (BPC).
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.binarising import SPECIAL, write_dictionary, write_split
from highrank_plugins.data.corpora import CorpusOptions

LENGTH = 100_000_000
# where each split ends, in percent of the text
ENDS = {"train": 90, "valid": 95, "test": 100}
SPACE = "_"
_ALPHABET = b" abcdefghijklmnopqrstuvwxyz"
_BLOCK = 1 << 20


def prepare(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Write `output`/dict.txt and `output`/{train,valid,test}.{bin,idx} from `data`/text8."""
    import numpy as np
    from tqdm import tqdm

    options.refuse(name, "vocab_size", "max_train_lines", "workers")
    path = data / "text8"
    if not path.is_file():
        raise UserError(f"{path} does not exist: put the file text8 of text8.zip there")
    total = path.stat().st_size
    options.require_known(total, LENGTH, f"{path}: characters")
    text = np.memmap(path, np.uint8, "r") if total else np.zeros(0, np.uint8)
    bounds = [0, *(total * end // 100 for end in ENDS.values())]
    parts = {split: text[a:b] for split, (a, b) in zip(ENDS, pairwise(bounds), strict=True)}
    counts = {split: _count(part) for split, part in parts.items()}
    _require_alphabet(path, counts)
    # sorted as fairseq does: by count, then alphabetically
    present = (byte for byte in _ALPHABET if counts["train"][byte])
    ranked = sorted((-int(counts["train"][byte]), _symbol(byte), byte) for byte in present)
    numbers = write_dictionary(output / "dict.txt", [(word, -count) for count, word, _ in ranked])
    table = np.zeros(256, np.int32)
    for _, word, byte in ranked:
        table[byte] = numbers[word]
    for split, part in parts.items():
        total = -(len(part) // -_BLOCK)
        shown = tqdm(_blocks(part), split, total, unit="MiB", **bar_options())
        blocks = ((table[block], np.array([len(block)])) for block in shown)
        _, tokens, _ = write_split(output / split, blocks, SPECIAL + len(numbers))
        yield f"{split}: {tokens:,} characters without </s>, {len(numbers)} types, none <unk>"


def _symbol(byte: int) -> str:
    return SPACE if byte == ord(" ") else chr(byte)


def _blocks(text: Any) -> Iterator[Any]:
    """Yield an array of bytes as arrays of at most 1 MiB."""
    return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))


def _count(text: Any) -> Any:
    """Count each byte, [256]."""
    import numpy as np

    counts = np.zeros(256, np.int64)
    for block in _blocks(text):
        counts += np.bincount(block, minlength=256)
    return counts


def _require_alphabet(path: Path, counts: dict[str, Any]) -> None:
    for split, found in counts.items():
        if not found.sum():
            raise UserError(f"{path}: too short: nothing is left for {split}")
        for byte in found.nonzero()[0]:
            if byte not in _ALPHABET:
                raise UserError(
                    f"{path}: has the byte 0x{byte:02x}, but text8 has only a to z and spaces: "
                    "unpack text8.zip again, or clean the text"
                )
            if not counts["train"][byte]:
                raise UserError(
                    f"{path}: {split} has {_symbol(byte)!r}, which does not occur in train"
                )
