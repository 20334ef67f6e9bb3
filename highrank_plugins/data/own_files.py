"""Find and read the files of a text of the user's own, count them, and choose a size of model."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import PositiveInt, RootModel, model_validator

from highrank_plugins.analysis.scored_text import separates_words
from highrank_plugins.common.blocks import BlockOptions, read_alone, validated
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.text_lines import TextRules, paired, read_text
from highrank_plugins.common.user_error import UserError

ALL = "all"  # a text that is still to be split
# part → the names of its files without their endings
_STEMS = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}
_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]+)*")
_TEXT = "data.vocab_size"  # key of the number of pieces
# option of a size → others that its number of updates or pieces is computed from
_COUNTED_BY = {
    "max_epoch": ("batch_size", "bptt", "warmup_updates"), "max_update": ("max_tokens",), _TEXT: (),
}  # fmt: skip
_COUNTED = 20_000  # lines whose words are counted
OwnLines = tuple[str, ...]  # one, or a sentence and its translation


def check_languages(endings: Sequence[str]) -> None:
    """Refuse what are not codes of two languages; a single ending is that of any text."""
    if len(endings) != 2:
        return
    for name in endings:
        if not _CODE.fullmatch(name):
            raise UserError(f"language {name!r}: expected a code such as cs or zh-Hans")
    if endings[0].replace("-", "_") == endings[1].replace("-", "_"):
        raise UserError(f"--source and --target are both {endings[0]}: give two languages")


def find_parts(data: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each part; those of one text to be split are `ALL`."""
    check_languages(endings)
    if data.is_file() and len(endings) == 1:
        return {ALL: [data]}
    if not data.is_dir():
        if whole := _complete(_files(data.parent, data.name, endings)):
            return {ALL: whole}
        ending = "{" + ",".join(endings) + "}" if len(endings) > 1 else endings[0]
        raise UserError(f"--data {data}: no such folder, and no files {data}.{ending}")
    found = {part: _files_of_part(data, stems, endings) for part, stems in _STEMS.items()}
    missing = {part for part, files in found.items() if not any(files)}
    parts = {part: whole for part, files in found.items() if (whole := _complete(files))}
    if len(parts) == len(_STEMS):
        return parts
    if "train" in parts and missing == {"valid", "test"}:
        return {ALL: parts["train"]}
    if len(missing) == len(_STEMS):  # one text of any name
        stems = {path.name.split(f".{endings[0]}")[0] for path in data.glob(f"*.{endings[0]}*")}
        texts = [w for stem in sorted(stems) if (w := _complete(_files(data, stem, endings)))]
        if len(texts) == 1:
            return {ALL: texts[0]}
    lacking = (f"{part}.{e}" for part, files in found.items()
               for e, path in zip(endings, files, strict=True) if path is None)  # fmt: skip
    has = ", ".join(sorted(path.name for path in data.iterdir() if path.is_file())[:8])
    raise UserError(
        f"--data {data}: {', '.join(lacking)} missing; the folder has {has or 'no files'}. Put "
        "train, valid (or dev) and test there, or one text alone, which is then split"
    )


def _files_of_part(data: Path, stems: Sequence[str], endings: Sequence[str]) -> list[Path | None]:
    there = {stem: files for stem in stems if any(files := _files(data, stem, endings))}
    if len(there) > 1:
        raise UserError(f"--data {data}: has {' and '.join(there)}; keep one of them")
    return next(iter(there.values()), [None] * len(endings))


def _files(folder: Path, stem: str, endings: Sequence[str]) -> list[Path | None]:
    """Return a file for each ending, plain or with .gz; None where it is missing."""
    paths = [(folder / f"{stem}.{e}", folder / f"{stem}.{e}.gz") for e in endings]
    for plain, packed in paths:
        if plain.is_file() and packed.is_file():
            raise UserError(f"{plain}: {packed.name} is there, too; keep one of them")
    return [next(filter(Path.is_file, both), None) for both in paths]


def _complete(files: Sequence[Path | None]) -> list[Path]:
    """Return all files, or none if one is missing."""
    there = [path for path in files if path]
    return there if len(there) == len(files) else []


def read_own(paths: Sequence[Path]) -> Iterator[OwnLines]:
    """Yield lines that belong together, with white space folded; name the place of bad text."""
    return paired(paths, [read_text(path, TextRules(folded=True)) for path in paths])


@dataclass
class TextCounts:
    """Count the training text: what its size and the number of pieces are chosen by."""

    lines: int = 0
    characters: int = 0
    words: int = 0
    different: set[str] = field(default_factory=set)  # words of the first `_COUNTED` lines
    letters: set[str] = field(default_factory=set)

    def add(self, pair: OwnLines) -> None:
        """Count a line of each side; the longer side counts as the model's tokens."""
        self.lines += 1
        self.characters += max(map(len, pair))
        self.words += max(line.count(" ") + 1 for line in pair)
        for line in pair:
            self.letters.update(line)
            if self.lines <= _COUNTED:
                self.different.update(line.split())

    @property
    def has_blanks(self) -> bool:
        """Whether blanks separate words."""
        return separates_words("".join(self.different))

    @property
    def pieces(self) -> int:
        """Return about how many pieces the longer side has: four letters each, or 1.5 Chinese."""
        return int(self.characters / (4 if self.has_blanks else 1.5)) + self.lines


class _Bounds(BlockOptions):
    lines: PositiveInt
    pieces: PositiveInt


class _Rare(BlockOptions):
    least_count: PositiveInt
    most: PositiveInt


class _Size(BlockOptions):
    """Hold a size of a table that users change."""

    below: _Bounds
    epochs: PositiveInt | None = None
    words: _Rare | None = None
    set: dict[str, Any]

    @model_validator(mode="after")
    def _has_what_updates_are_counted_by(self) -> "_Size":
        for option, others in _COUNTED_BY.items():
            for name in (option, *others) if option in self.set else ():
                if type(value := self.set.get(name)) is not int or value < 1:
                    raise ValueError(f"set.{name}: expected a whole number above 0, got {value!r}")
        if "max_update" in self.set and self.epochs is None:
            raise ValueError("epochs is missing: set.max_update grows with the text")
        return self


def choose_size(
    table: Path, counts: TextCounts, wanted: str, units: str = "pieces"
) -> tuple[str, str, dict[str, Any]]:
    """Return the size, the reason, and the options over the configuration of a layer.

    `auto` takes the first size whose bounds the text is below, in lines and units. There are at
    least as many updates as `epochs` take.
    """
    sizes = validated(RootModel[dict[str, _Size]], read_alone(table)).root
    if not sizes:
        raise UserError(f"{table}: has no sizes; name a recipe's table")
    if wanted not in {"auto", *sizes}:
        raise UserError(
            f"--size {wanted}: expected auto, {', '.join(sizes)}{did_you_mean(wanted, sizes)}"
        )
    number = counts.words + counts.lines if units == "words" else counts.pieces
    fitting = [
        name
        for name, size in sizes.items()
        if counts.lines < size.below.lines and number < size.below.pieces
    ]
    name = (fitting or list(sizes)[-1:])[0] if wanted == "auto" else wanted
    size = sizes[name]
    options = dict(size.set)
    if units == "words":
        if size.words is None:
            raise UserError(f"{table}: {name}: words is missing, which says how many are kept")
        options["words"] = size.words.model_dump()
    said = [f"{counts.lines:,} lines with {'' if units == 'words' else 'about '}{number:,} {units}"]
    if wanted == "auto" and fitting:
        said.append(f"below {size.below.lines:,} lines and {size.below.pieces:,} {units}")
    elif wanted != "auto":
        said.append("as --size says")
    pieces = options.pop(_TEXT, None)
    if pieces is not None and units == "pieces":
        options[_TEXT] = _pieces(pieces, counts)
    if "max_epoch" in options:  # of streams: a short text has few updates in all
        updates = options["max_epoch"] * number // (options["batch_size"] * options["bptt"])
        options["warmup_updates"] = min(options["warmup_updates"], updates // 4)
    if "max_update" in options:
        epochs = ceil((size.epochs or 0) * number / options["max_tokens"] / 100) * 100
        options["max_update"] = max(options["max_update"], epochs)
    return name, "; ".join(said), options


def _pieces(wanted: int, counts: TextCounts) -> int:
    """Return as many pieces as the lines and words carry, and more than the text has letters."""
    most = min(wanted, int(counts.lines / 1.5), len(counts.different | counts.letters))
    return max(most, ceil(1.5 * len(counts.letters)) + 4) // 10 * 10
