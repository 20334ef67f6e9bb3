"""Prepare text8: 100 million characters of Wikipedia; 90 % train, 5 % validate, 5 % test.

Characters are the words of fairseq's dictionary, a space is `_`. The text is one stream without any
</s>: every character is predicted from what is before it, the very first from the </s> with which
the task begins. A loss in bits per token is therefore one in bits per character (BPC).
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.binarising import SPECIAL, write_dictionary, write_split
from highrank_plugins.data.corpora import CorpusOptions

LENGTH = 100_000_000
# where each split ends, in percent of the text
ENDS = {"train": 90, "valid": 95, "test": 100}
_ALPHABET = b" abcdefghijklmnopqrstuvwxyz"


def prepare(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Write `output`/dict.txt and `output`/{train,valid,test}.{bin,idx} from `data`/text8."""
    import numpy as np

    options.refuse(name, "vocab_size", "max_train_lines")
    path = data / "text8"
    if not path.is_file():
        raise UserError(f"{path} does not exist: put the file text8 of text8.zip there")
    text = path.read_bytes()
    options.require_known(len(text), LENGTH, f"{path}: characters")
    bounds = [0, *(len(text) * end // 100 for end in ENDS.values())]
    parts = {split: text[a:b] for split, (a, b) in zip(ENDS, pairwise(bounds), strict=True)}
    counts = {split: Counter(part) for split, part in parts.items()}
    _require_alphabet(path, counts)
    # sorted as fairseq does: by count, then alphabetically
    ranked = sorted((-count, _symbol(byte), byte) for byte, count in counts["train"].items())
    numbers = write_dictionary(output / "dict.txt", [(word, -count) for count, word, _ in ranked])
    table = np.zeros(256, np.uint8)
    for _, word, byte in ranked:
        table[byte] = numbers[word]
    for split, part in parts.items():
        block = table[np.frombuffer(part, np.uint8)], np.array([len(part)])
        write_split(output / split, [block], SPECIAL + len(numbers))
        yield f"{split}: {len(part):,} characters without </s>, {len(numbers)} types, none <unk>"


def _symbol(byte: int) -> str:
    return "_" if byte == ord(" ") else chr(byte)


def _require_alphabet(path: Path, counts: dict[str, Counter[int]]) -> None:
    for split, found in counts.items():
        if not found:
            raise UserError(f"{path}: too short: nothing is left for {split}")
        for byte in found:
            if byte not in _ALPHABET:
                raise UserError(
                    f"{path}: has the byte 0x{byte:02x}, but text8 has only a to z and spaces: "
                    "unpack text8.zip again, or clean the text"
                )
            if byte not in counts["train"]:
                raise UserError(
                    f"{path}: {split} has {_symbol(byte)!r}, which does not occur in train"
                )
