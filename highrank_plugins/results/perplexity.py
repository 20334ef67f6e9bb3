"""Read scores from the output of evaluations: fairseq's perplexities, and our measures."""

import re
from collections.abc import Callable
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from highrank_plugins.common.files import checksum, read_json
from highrank_plugins.common.names import Score
from highrank_plugins.common.text_lines import byte_lines
from highrank_plugins.data.binarising import SPECIAL, count_words, sizes_of
from highrank_plugins.measures import find_measure, measure_names
from highrank_plugins.results.scoring import read_lines

if TYPE_CHECKING:
    from highrank_plugins.measures.base import Measure

T = TypeVar("T")
WORD, BYTE = "word_perplexity", "bits_per_byte"  # whatever the pieces
BEFORE = "_before_finetuning"  # ends the names of the scores of the first training run
_COUNT = re.compile(r"Evaluated ([\d,]+) tokens")
_WORDS = re.compile(r"are means over ([\d,]+) words")  # the log of hooks/evaluation.py
_PART = re.compile(r"this is part \d+ of \d+")  # the log of hooks/evaluation.py
_CERTIFICATE = re.compile(r"ppl\|\S+")  # the log of hooks/evaluation.py
_LOSS = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity")


def read_eval_lm(log: Path, split: str) -> dict[str, Score]:
    """Return `<split>_perplexity` and `<split>_bits` per token, or word, of fairseq-eval-lm."""
    if not log.is_file():
        raise ValueError(f"{log} is missing; score {split} by fairseq-eval-lm > {log.name}")
    text = log.read_text(encoding="utf-8")
    counts, losses = _COUNT.findall(text), _LOSS.findall(text)
    if not counts or not losses:
        raise ValueError(f"{log}: fairseq-eval-lm has printed no result; run it again")
    if part := _PART.search(text):
        raise ValueError(f"{log}: {part[0]}; score the whole text, without --num-shards")
    bits = float(losses[-1])
    signature = f"tokens:{counts[-1].replace(',', '')}|eval:static"
    signature += "".join(f"|words:{n.replace(',', '')}" for n in _WORDS.findall(text)[-1:])
    certificate = "".join(_CERTIFICATE.findall(text)[-1:])
    return {
        f"{split}_perplexity": Score(round(2**bits, 2), signature, certificate),
        f"{split}_bits": Score(bits, signature, certificate),
    }


def is_eval_lm(output: Path) -> bool:
    return any(map(_COUNT.search, read_lines(output)))


def of_text(log: Path, text: Path) -> dict[str, Score]:
    """Return perplexities per piece and per word, and bits per byte, of the scored raw text.

    The end of a line counts as a piece, a word and a byte. Only the last two compare models with
    different pieces.
    """
    score = read_eval_lm(log, "test")["test_bits"]
    counted = dict(part.split(":") for part in score.signature.split("|"))
    lines = [line for _, line in byte_lines(text, may_be_empty=False)]
    scored, pieces = int(counted.get("words", counted["tokens"])), int(counted["tokens"])
    bits = score.value * scored
    words, size = (sum(map(f, lines)) + len(lines) for f in (lambda line: len(line.split()), len))
    if pieces < words:
        raise ValueError(
            f"{log} scores {pieces:,} tokens, but {text} has {words:,} words and ends of lines; "
            "give the text that was scored"
        )
    return {
        "test_perplexity": Score(round(2 ** (bits / pieces), 2), f"tokens:{pieces}"),
        WORD: Score(round(2 ** (bits / words), 2), f"text_words:{words}"),
        BYTE: Score(round(bits / size, 3), f"bytes:{size}"),
    }


def dictionary(data: Path) -> str | None:
    """Return the checksum of a binarised text's dictionary, None without one."""
    found = sorted(data.glob("**/dict.txt"))
    return checksum(found[0]) if found else None


UNIGRAM, _UNIGRAM_FILES = "test_unigram_perplexity", ("dict.txt", "test.idx")


def training_counts(data: Path, size: int, language: str | None = None) -> Any:
    """Return how often the training text has each of `size` words.

    None without a text, or of one in another of fairseq's formats.
    """
    import numpy as np

    name, counts = f"train.*-*.{language}.idx" if language else "train.idx", np.zeros(size)
    paths = [*data.glob(name), *data.glob(f"shard*/{name}")]
    if not paths or any(sizes_of(path) is None for path in paths):
        return None
    for path in paths:
        found = count_words(path)[:size]
        counts[: len(found)] += found
    return counts


def unigram_perplexity(data: Path) -> Score | None:
    """Return the perplexity of counting words: P = (n + 1) / (N + V), n in the training text.

    A language model above it on the test text has learnt nothing from contexts. V is the size of
    the dictionary. None for data of another format or kind.
    """
    import numpy as np

    words, test = (next(iter(sorted(data.glob(f"**/{name}"))), None) for name in _UNIGRAM_FILES)
    size = len(read_lines(words)) + SPECIAL if words else 0
    counts = training_counts(data, size)
    if not (words and test) or counts is None or sizes_of(test) is None:
        return None
    wanted, shares = count_words(test), (counts + 1) / (counts + 1).sum()
    nats = -(wanted * np.log(shares[: len(wanted)])).sum() / wanted.sum()
    return Score(round(float(np.exp(nats)), 2), f"tokens:{wanted.sum()}|words:{len(counts)}")


def before_finetuning(folder: Path) -> dict[str, Score]:
    return {
        f"{split}_perplexity{BEFORE}": read_eval_lm(
            folder / f"before_finetuning_{split}.log", split
        )[f"{split}_perplexity"]
        for split in ("valid", "test")
    }


def read_measures(directory: Path, split: str) -> dict[str, Score]:
    """Return the scores in all files named like a measure; names begin with the split."""
    scores: dict[str, Score] = {}

    def of_split(measure: "type[Measure]", found: Any) -> dict[str, Score]:
        there = found.get("split", found.get("options", {}).get("split", split))
        if there != split:
            raise ValueError(f"measured on {there}, not on {split}")
        return measure.scores(found, split)

    for found in _read_all(directory, of_split).values():
        scores |= found
    return scores


def tokens_read(directory: Path) -> dict[str, int]:
    """Return the tokens that each measure of a text in `directory` covers, by its name."""

    def whole(measure: "type[Measure]", found: Any) -> int | None:
        number = measure.tokens_read(found)
        return None if number is None else index(number)

    numbers = _read_all(directory, whole)
    return {name: number for name, number in numbers.items() if number is not None}


def _read_all(directory: Path, read: "Callable[[type[Measure], Any], T]") -> dict[str, T]:
    results = {}
    for name in measure_names():
        path = directory / f"{name}.json"
        if not path.is_file():
            continue
        try:
            results[name] = read(find_measure(name), read_json(path))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a result of {name} ({error!r})") from None
    return results
