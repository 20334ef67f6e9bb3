"""Strings from a wheel made here: what becomes a pair, and in which part."""

import json
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.recipes.running import RECIPES, run

SCRIPT = RECIPES / "ui_strings_en_de" / "extract.py"


def write_wheel(path: Path, components: dict[str, dict[str, dict]]) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("homeassistant/__init__.py", "")
        for component, languages in components.items():
            for language, strings in languages.items():
                name = f"homeassistant/components/{component}/translations/{language}.json"
                wheel.writestr(name, json.dumps(strings))
    return path


def extract(wheel: Path, output: Path, code: int = 0) -> str:
    """Return what the script says on standard error."""
    output.mkdir(exist_ok=True)
    command = [sys.executable, SCRIPT, wheel, output, "--source", "en", "--target", "de"]
    return run(command, code).stderr


def pairs(output: Path) -> dict[str, list[tuple[str, str]]]:
    def lines(name: str) -> list[str]:
        return (output / name).read_text().splitlines()

    parts = ("train", "valid", "test")
    return {of: [*zip(lines(f"{of}.en"), lines(f"{of}.de"), strict=True)] for of in parts}


def many(count: int) -> dict[str, dict]:
    return {
        "en": {str(i): f"text {i}" for i in range(count)},
        "de": {str(i): f"Wort {i}" for i in range(count)},
    }


@pytest.fixture
def extracted(tmp_path):
    special = {
        "en": {"nested": {"deep": {"a": "Turn  on\nthe light"}}, "same": "Update",
               "holder": "{count} of {total}", "order": "{a} then {b}", "lost": "Hello {name}",
               "repeated": "{x}{x}", "only_en": "Alone", "empty": "Something"},
        "de": {"nested": {"deep": {"a": "Licht einschalten"}}, "same": "Update",
               "holder": "{count} von {total}", "order": "{b} nach {a}", "lost": "Hallo",
               "repeated": "{x}", "only_de": "Allein", "empty": " "},
    }  # fmt: skip
    lone = {"en": {"a": "No partner file"}}
    copy = {"en": {"z": "Turn on the light"}, "de": {"z": "Licht einschalten"}}
    wheel = write_wheel(
        tmp_path / "w.whl", {"many": many(300), "special": special, "lone": lone, "copy": copy}
    )
    extract(wheel, tmp_path / "out")
    return pairs(tmp_path / "out")


def test_only_useful_pairs_are_kept_and_all_are_counted_by_what_became_of_them(tmp_path, extracted):
    kept = {pair for part in extracted.values() for pair in part if "text" not in pair[0]}
    assert kept == {
        ("Turn on the light", "Licht einschalten"),
        ("{count} of {total}", "{count} von {total}"),
        ("{a} then {b}", "{b} nach {a}"),
    }
    everything = [pair for part in extracted.values() for pair in part]
    assert len(everything) == len(set(everything)) == 303 and all(extracted.values())
    extract(tmp_path / "w.whl", tmp_path / "again")
    assert pairs(tmp_path / "again") == extracted
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    assert counts.keys() == {f"{p}.{side}" for p in extracted for side in ("en", "de")}
    left_out: Counter[str] = Counter()
    for name, entry in counts.items():
        lines = (tmp_path / "out" / name).read_text().splitlines()
        words = sum(len(line.split()) for line in lines)
        assert entry["out"] == {"sentences": len(lines), "words": words}
        for unit in ("sentences", "words"):
            gone = sum(tally[unit] for tally in entry["left out"].values())
            assert entry["in"][unit] == entry["out"][unit] + gone
        if name.endswith(".en"):
            left_out.update({why: tally["sentences"] for why, tally in entry["left out"].items()})
    assert left_out == {"equal sides": 1, "empty": 1, "other placeholders": 2, "repeated": 1}


def test_a_source_with_two_translations_is_in_one_part_and_a_few_strings_are_refused(tmp_path):
    strings = many(300)
    second = {"en": strings["en"], "de": {k: f"{v}!" for k, v in strings["de"].items()}}
    extract(write_wheel(tmp_path / "w.whl", {"a": strings, "b": second}), tmp_path / "out")
    sources = [{source for source, _ in part} for part in pairs(tmp_path / "out").values()]
    assert sum(map(len, sources)) == len(set().union(*sources)) == 300
    said = extract(write_wheel(tmp_path / "w.whl", {"a": many(2)}), tmp_path / "out", code=1)
    assert "w.whl: too few strings, none for" in said
