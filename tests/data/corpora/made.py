"""Invented corpora, laid out as the published ones are."""

import random
from pathlib import Path

from highrank_plugins.data.corpora import CorpusOptions, one_billion_word, prepare_corpus

NOUNS = "cat dog house tree bird car road lamp door hill".split()
VERBS = "sees likes eats finds draws".split()
LINES = {"train": 120, "valid": 24, "test": 18}
SHARDS = (1, 2, 99)
OTHER = CorpusOptions(other_text=True)


def prepare(name: str, data: Path, output: Path, options: CorpusOptions = OTHER) -> list[str]:
    return list(prepare_corpus(name, data, output, options))


def sentences(count: int, seed: int) -> list[str]:
    """Return lines of a few words, <unk> among them, with an order that can be learnt."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        first = draw.randrange(len(NOUNS))
        words = ["the", NOUNS[first], VERBS[first % len(VERBS)], "a", NOUNS[first // 2]]
        rows.append(" ".join([*words, draw.choice([".", "!", "<unk> ."])]))
    return rows


def write_lines(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def ptb(folder: Path, name: str = "ptb.{}.txt") -> Path:
    """Write lines with a space at each end."""
    for seed, (split, count) in enumerate(LINES.items()):
        write_lines(folder / name.format(split), [f" {row} " for row in sentences(count, seed)])
    return folder


def wikitext2(folder: Path) -> Path:
    """Write articles: an empty line (one space), a title, an empty line, a paragraph."""
    for seed, (split, count) in enumerate(LINES.items()):
        rows = []
        for row in sentences(count // 2, seed):
            rows += [" ", f" = {row} = ", " ", f" {row} {row} @-@ {row} "]
        write_lines(folder / "wikitext-2" / f"wiki.{split}.tokens", rows)
    return folder


def one_billion(folder: Path, shards: tuple[int, ...] = SHARDS) -> Path:
    """Write some shards and the held-out files that are used, with capitals and names."""
    root = folder / one_billion_word.ARCHIVE
    for number in shards:
        rows = [f"{row} Name{n % 7}" for n, row in enumerate(capitals(60, number))]
        write_lines(root / one_billion_word.TRAIN.format(number), rows)
    for number in (0, 10, 20, 30, 40):
        rows = [f"{row} Rare{n}" for n, row in enumerate(capitals(10, 200 + number))]
        write_lines(root / one_billion_word.HELDOUT.format(number), rows)
    return folder


def capitals(count: int, seed: int) -> list[str]:
    return [row.replace("<unk>", "Über").capitalize() for row in sentences(count, seed)]


def text8(folder: Path, length: int = 4_000) -> Path:
    """Write `length` characters, a to z and spaces, without a line feed."""
    words = " ".join(sentences(length // 10, 5)).replace("<unk>", "quiz")
    text = " " + "".join(c for c in words if c == " " or c.isalpha())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text8").write_text(" ".join(text.split(" "))[:length])
    return folder
