"""Fifty invented dialogues in the layout of Zhao et al. 2017, always the same."""

import json
import random
from pathlib import Path

SIZES = {"train": 40, "valid": 5, "test": 5}
THINGS = "garden boat piano kitchen bicycle greenhouse".split()
COLOURS = "red green old small new".split()
QUESTIONS = ["do you have a {thing}", "so what about your {thing}", "is the {thing} {colour}"]
ANSWERS = ["yeah it's a {colour} {thing}", "no we don't have a {thing}", "uh-huh", "I Know"]


def corpus() -> dict[str, list[dict]]:
    """Return `{"train": [dialogue, …], "valid": …, "test": …}`."""
    draw = random.Random(50)
    return {split: [_dialogue(draw) for _ in range(size)] for split, size in SIZES.items()}


def _dialogue(draw: random.Random) -> dict:
    thing = draw.choice(THINGS)
    people = {name: {"age": draw.randint(20, 70), "sex": "FEMALE"} for name in "AB"}
    utterances = []
    for turn in range(draw.randint(3, 8)):
        text = _text(draw, ANSWERS if turn % 2 else QUESTIONS, thing)
        utterances.append(("AB"[turn % 2], text, ["statement", [0.0, 1.0, 0.5]]))
    return {**people, "topic": thing.upper(), "utts": utterances}


def _text(draw: random.Random, templates: list[str], thing: str) -> str:
    return draw.choice(templates).format(thing=thing, colour=draw.choice(COLOURS))


def write_json_lines(folder: Path, dialogues: dict | None = None) -> Path:
    """Write a line of JSON per dialogue; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, each in (dialogues or corpus()).items():
        text = "".join(json.dumps(dialogue) + "\n" for dialogue in each)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def references() -> list[dict]:
    """Return every context of the test dialogues with three responses, in order."""
    draw = random.Random(51)
    entries = []
    for dialogue in corpus()["test"]:
        said = ["0-A: <s> <d> </s>"]
        for speaker, text, _ in dialogue["utts"]:
            others = [_text(draw, ANSWERS, draw.choice(THINGS)) for _ in range(2)]
            entries.append(
                {"context": list(said), "speaker": speaker, "responses": [text, *others],
                 "resp_dialog_acts": ["statement"] * 3}
            )  # fmt: skip
            said.append(f"{len(said)}-{speaker}: {text} ")
    return entries


def write_references(folder: Path, entries: list | None = None) -> Path:
    path = folder / "test_multi_ref.json"
    path.write_text(json.dumps(references() if entries is None else entries))
    return path
