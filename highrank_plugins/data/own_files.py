"""Find the files of a text of the user's own, and read lines that belong together."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from highrank_plugins.common.text_lines import (
    TextError,
    byte_lines,
    decode_line,
    fold,
    reserved_word,
)
from highrank_plugins.common.user_error import UserError

ALL = "all"  # a text that is still to be split
_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]+)*")
OwnLines = tuple[str, ...]  # one, or a sentence and its translation


def find_parts(data: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each part; those of one text to be split are `ALL`."""
    if len(endings) == 2:
        for name in endings:
            if not _CODE.fullmatch(name):
                raise UserError(f"language {name!r}: expected a code such as cs or zh-Hans")
        if endings[0] == endings[1]:
            raise UserError(f"--source and --target are both {endings[0]}: give two languages")
    if data.is_file():
        if len(endings) == 1:
            return {ALL: [data]}
        raise UserError(f"--data {data}: a translator needs two files; give their folder")
    if not data.is_dir():
        found = _files(data.parent, data.name, endings)
        if all(found):
            return {ALL: [path for path in found if path]}
        ending = "{" + ",".join(endings) + "}" if len(endings) > 1 else endings[0]
        raise UserError(f"--data {data}: no such folder, and no files {data}.{ending}")
    names = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}
    there: dict[str, list[Path]] = {}
    lacking: list[str] = []
    for part, stems in names.items():
        found = max(
            (_files(data, stem, endings) for stem in stems), key=lambda f: sum(map(bool, f))
        )
        there |= {part: [path for path in found if path]} if all(found) else {}
        lacking += [f"{stems[0]}.{e}" for e, path in zip(endings, found, strict=True) if not path]
    if not lacking:
        return there
    if len(lacking) == 2 * len(endings) and "train" in there:
        return {ALL: there["train"]}
    if len(lacking) == 3 * len(endings):
        named = {path.name.split(f".{endings[0]}")[0] for path in data.glob(f"*.{endings[0]}*")}
        whole = [f for stem in sorted(named) if all(f := _files(data, stem, endings))]
        if len(whole) == 1:
            return {ALL: [path for path in whole[0] if path]}
    has = ", ".join(sorted(path.name for path in data.iterdir() if path.is_file())[:8])
    raise UserError(
        f"--data {data}: {', '.join(lacking)} missing; the folder has {has or 'no files'}. Put "
        "train, valid (or dev) and test there, or one text alone, which is then split"
    )


def _files(folder: Path, stem: str, endings: Sequence[str]) -> list[Path | None]:
    """Return a file for each ending, plain or with .gz; None where it is missing."""
    paths = [(folder / f"{stem}.{e}", folder / f"{stem}.{e}.gz") for e in endings]
    return [next(filter(Path.is_file, both), None) for both in paths]


def read_own(paths: Sequence[Path]) -> Iterator[OwnLines]:
    """Yield lines that belong together, with white space folded; name the place of bad text."""
    number = 0
    for number, rows in enumerate(zip_longest(*map(byte_lines, paths)), 1):
        if None in rows:
            shorter = paths[rows.index(None)]
            longer = next(path for path, row in zip(paths, rows, strict=True) if row)
            raise TextError(
                f"{longer}:{number}: this line has no partner: {shorter} has {number - 1:,} lines; "
                "line n of one file must translate line n of the other"
            )
        lines = [fold(decode_line(p, number, row[1])) for p, row in zip(paths, rows, strict=True)]
        for path, line in zip(paths, lines, strict=True):
            if found := reserved_word(line):
                raise TextError(f"{path}:{number}: fairseq reserves the word {found[0]}; remove it")
        yield tuple(lines)
    if not number:
        raise TextError(f"{paths[0]}: the file is empty")
