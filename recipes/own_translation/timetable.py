"""Write an English and a German timetable, the embedded text of `scripts/quickstart.sh --look`.

Each line is a sentence of a few dozen words, such as "the bus to Bremen leaves at ten past two in the
morning". The sentences are drawn with a fixed seed; none is written twice.
"""

import random
import sys
from itertools import product
from pathlib import Path

LINES = 3_000
ONES = (
    "one ein,two zwei,three drei,four vier,five fünf,six sechs,seven sieben,eight acht,nine neun,"
    "ten zehn,eleven elf,twelve zwölf,thirteen dreizehn,fourteen vierzehn,fifteen fünfzehn,"
    "sixteen sechzehn,seventeen siebzehn,eighteen achtzehn,nineteen neunzehn"
)
NUMBERS = [tuple(pair.split()) for pair in ONES.split(",")]
NUMBERS += [("twenty", "zwanzig")]
NUMBERS += [(f"twenty {english}", f"{german} und zwanzig") for english, german in NUMBERS[:9]]
THINGS = [
    ("train", "der Zug"),
    ("bus", "der Bus"),
    ("ferry", "die Fähre"),
    ("plane", "das Flugzeug"),
]
PLACES = "Bremen Berlin Kiel Bonn Ulm Jena Halle Trier Basel Wien Graz Linz".split()
DAYTIMES = [("in the morning", "am Morgen"), ("in the afternoon", "am Nachmittag"), ("at night", "in der Nacht")]  # fmt: skip
WAYS = [("leaves for", "fährt nach", "ab"), ("arrives from", "kommt aus", "an")]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    every = list(product(THINGS, WAYS, PLACES, NUMBERS, ("past nach", "to vor"), NUMBERS[:12], DAYTIMES))  # fmt: skip
    rows = [_sentences(*chosen) for chosen in random.Random(1).sample(every, LINES)]
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{row[side]}\n" for row in rows)
        (folder / f"timetable.{language}").write_text(text, encoding="utf-8")


def _sentences(thing, way, place, minutes, relation, hour, daytime) -> tuple[str, str]:
    english, german = relation.split()
    return (
        f"the {thing[0]} {way[0]} {place} at {minutes[0]} {english} {hour[0]} {daytime[0]}",
        f"{thing[1]} {way[1]} {place} um {minutes[1]} {german} {hour[1]} {daytime[1]} {way[2]}",
    )


if __name__ == "__main__":
    main()
