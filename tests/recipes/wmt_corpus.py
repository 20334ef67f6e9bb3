"""The tiny text in archives with the layout of WMT's: several languages, .tar with .gz, .sgm."""

import gzip
import json
from pathlib import Path

from tests.data.test_archives import write
from tests.recipes.running import TEXT

# pairs that are not to be kept, with what the report calls them
BAD = [
    (b"caf\xe9\n", b"Kaffee\n", "not UTF-8"),
    (b" \t\n", b"leer\n", "empty"),
    (b"one\n", b"zwei " * 10 + b"\n", "with one side 9 times longer than the other"),
    (b"many " * 251 + b"\n", b"viele " * 251 + b"\n", "longer than 250 words"),
]


PAIR = ("en", "de")


def lines(part: str, language: str) -> list[bytes]:
    return (TEXT / f"{part}.{language}").read_bytes().splitlines(keepends=True)


def sgm(sentences: list[bytes], kind: str) -> bytes:
    segments = (
        b'<seg id="%d">%s</seg>\n' % (number, sentence.rstrip())
        for number, sentence in enumerate(sentences, 1)
    )
    return b"<%s>\n<doc>\n<p>\n%s</p>\n</doc>\n</%s>\n" % (
        kind.encode(), b"".join(segments), kind.encode(),
    )  # fmt: skip


def publish(folder: Path) -> Path:
    folder.mkdir(parents=True)
    names = ("web.tgz", "giga.tar", "dev.tgz", "test.tgz")
    files: dict[str, dict[str, bytes]] = {name: {} for name in names}
    for side, (language, kind) in enumerate({"en": "srcset", "de": "refset"}.items()):
        train = lines("train", language)
        bad = [pair[side] for pair in BAD]
        files["web.tgz"][f"./training/web.de-en.{language}"] = b"".join(train[:150] + bad)
        files["web.tgz"][f"./training/web.cs-en.{language}"] = b"another pair\n"
        files["giga.tar"][f"giga.{language}.gz"] = gzip.compress(b"".join(train[150:]))
        files["dev.tgz"][f"dev/news.{language}"] = b"".join(lines("valid", language))
        name = f"test/news-{kind[:3]}.{language}.sgm"
        files["test.tgz"][name] = sgm(lines("test", language), kind)
    for name, content in files.items():
        write(folder / name, content)
    entries = {n: {"url": str(folder / n), "sha256": "unknown", "source": "nobody"} for n in names}
    texts = {
        "train": [[f"training/web.de-en.{of}" for of in PAIR], [f"giga.{of}.gz" for of in PAIR]],
        "valid": [[f"dev/news.{of}" for of in PAIR]],
        "test": [["test/news-src.en.sgm", "test/news-ref.de.sgm"]],
    }
    path = folder / "corpus.yaml"
    path.write_text(json.dumps({"gigabytes": 1, "files": entries, "texts": texts}) + "\n")
    return path
