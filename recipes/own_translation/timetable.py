"""Write an English and a German timetable, the embedded text of `scripts/quickstart.sh --look`.

The sentences are drawn with a fixed seed; none is written twice.
"""

import random
import sys
from itertools import product
from pathlib import Path

Words = tuple[str, str]  # English and German
LINES = 3_000
ONES = (
    "one ein,two zwei,three drei,four vier,five fünf,six sechs,seven sieben,eight acht,nine neun,"
    "ten zehn,eleven elf,twelve zwölf,thirteen dreizehn,fourteen vierzehn,fifteen fünfzehn,"
    "sixteen sechzehn,seventeen siebzehn,eighteen achtzehn,nineteen neunzehn"
)
NUMBERS: list[Words] = [(pair.split()[0], pair.split()[1]) for pair in ONES.split(",")]
NUMBERS += [("twenty", "zwanzig")]
NUMBERS += [(f"twenty {english}", f"{german} und zwanzig") for english, german in NUMBERS[:9]]
ENGLISH, GERMAN = "train bus ferry plane", "der Zug,der Bus,die Fähre,das Flugzeug"
THINGS = [*zip(ENGLISH.split(), GERMAN.split(","), strict=True)]
PLACES = "Bremen Berlin Kiel Bonn Ulm Jena Halle Trier Basel Wien Graz Linz".split()
DAYS = [("in the morning", "am Morgen"), ("at noon", "am Mittag"), ("at night", "in der Nacht")]
RELATIONS = [("past", "nach"), ("to", "vor")]
WAYS = [("leaves for", "fährt nach", "ab"), ("arrives from", "kommt aus", "an")]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    every = list(product(THINGS, WAYS, PLACES, NUMBERS, RELATIONS, NUMBERS[:12], DAYS))
    rows = [_sentences(*chosen) for chosen in random.Random(1).sample(every, LINES)]
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{row[side]}\n" for row in rows)
        (folder / f"timetable.{language}").write_text(text, encoding="utf-8")


def _sentences(
    thing: Words, way: tuple[str, str, str], place: str, minutes: Words, relation: Words,
    hour: Words, day: Words,
) -> Words:  # fmt: skip
    times = [f"{minutes[side]} {relation[side]} {hour[side]} {day[side]}" for side in (0, 1)]
    english = f"the {thing[0]} {way[0]} {place} at {times[0]}"
    return english, f"{thing[1]} {way[1]} {place} um {times[1]} {way[2]}"


if __name__ == "__main__":
    main()
