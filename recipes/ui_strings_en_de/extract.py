"""Take parallel user-interface strings from the wheel of Home Assistant, read as a zip in place.

The wheel holds homeassistant/components/*/translations/<language>.json: nested objects whose
leaves are strings. Two strings of one component and one path of keys are a pair. Runs of white
space become one space. Pairs with equal sides or different {placeholders} are dropped, repeated
pairs count once. A hash of the source decides between train (96 %), valid (2 %) and test (2 %), so
that no source is in two of them. The file counts.json has the pairs and words of each part by what
became of them.
"""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli import as_command, main
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import write_text
from highrank_plugins.common.text_lines import fold
from highrank_plugins.data.own_text import part_of, tally
from highrank_plugins.data.parallel import KEPT

FILE = "homeassistant/components/{component}/translations/{language}.json"
Pair = tuple[str, str]
PLACEHOLDER = re.compile(r"\{[^}]*\}")


def extract(
    wheel: Annotated[Path, "The wheel of Home Assistant."],
    output: Annotated[Path, "Folder for {train,valid,test}.LANGUAGE and counts.json."],
    source: str = option(..., "Language, such as en."),
    target: str = option(..., "Language, such as de."),
) -> None:
    """Take parallel user-interface strings from a wheel.

    Example: python recipes/ui_strings_en_de/extract.py FILE.whl text --source en --target de
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            fates = fates_of(all_pairs(archive, source, target))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{wheel}: not a wheel ({error}); download it again") from None
    counts: Counter[str] = Counter()
    ledger: dict[str, dict] = {}
    output.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        found = [(pair, fate) for pair, fate in fates if part_of(pair[0]) == part]
        kept = [pair for pair, fate in found if fate == KEPT]
        if not kept:
            raise ValueError(f"{wheel}: too few strings, none for {part}")
        counts[part] = len(kept)
        for side, language in enumerate((source, target)):
            write_text(output / f"{part}.{language}", "".join(f"{pair[side]}\n" for pair in kept))
            ledger[f"{part}.{language}"] = tally([(pair[side], fate) for pair, fate in found])
    write_text(output / "counts.json", json.dumps(ledger, indent=1))
    typer.echo(f"{counts.total()} of {len(fates)} pairs: {dict(counts)}")


def fates_of(pairs: Iterable[Pair]) -> list[tuple[Pair, str]]:
    """Return each pair with the reason to leave it out, or `KEPT`, in their order."""
    seen: set[Pair] = set()
    found = []
    for pair in pairs:
        fate = problem(*pair) or ("repeated" if pair in seen else KEPT)
        seen.add(pair)
        found.append((pair, fate))
    return found


def all_pairs(wheel: zipfile.ZipFile, source: str, target: str) -> Iterator[Pair]:
    """Yield pairs in the order of components and keys."""
    pattern = re.compile(FILE.format(component=r"([^/]+)", language=re.escape(source)))
    names = set(wheel.namelist())
    for name in sorted(names):
        match = pattern.fullmatch(name)
        partner = match and FILE.format(component=match[1], language=target)
        if partner in names:
            targets = dict(leaves(json.loads(wheel.read(partner))))
            for keys, text in leaves(json.loads(wheel.read(name))):
                if keys in targets:
                    yield fold(text), fold(targets[keys])


def leaves(tree: dict, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def problem(source: str, target: str) -> str | None:
    """Return the reason to leave a pair out, or None."""
    if not (source and target):
        return "empty"
    if source == target:
        return "equal sides"
    if Counter(PLACEHOLDER.findall(source)) != Counter(PLACEHOLDER.findall(target)):
        return "other placeholders"
    return None


if __name__ == "__main__":
    main(as_command(extract), "python recipes/ui_strings_en_de/extract.py")
