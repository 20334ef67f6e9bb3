"""Measure pairs per second and memory of the data path and of fairseq's own tools.

    .venv/bin/python scripts/measure_data_path.py [--ours] [PAIRS [PROCESSES]]

Generates PAIRS (200000) pairs of invented words with the lengths of news. Times `ours`, which is
`highrank data clean-texts`, pieces and binarise. Times `stock` on the text that ours has cleaned:
fairseq's spm_encode.py for both languages at once, then fairseq-preprocess. Compares what they have
written. Prints a line of JSON for each command, and for both paths without learning pieces, which
both use. `--ours` leaves out stock, which takes three times as long.
"""

import argparse
import filecmp
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

LANGUAGES = ("en", "de")
SAMPLING_SECONDS = 0.5
CORPUS = "texts: {train: [[t.en, t.de]], valid: [[v.en, v.de]], test: [[v.en, v.de]]}\n"
# a line at a time, like fairseq's scripts/spm_encode.py
STOCK_ENCODER = """
import sys
import sentencepiece
processor = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
for line in sys.stdin:
    print(" ".join(processor.encode(line.rstrip("\\n"), out_type=str)))
"""


def sentences(count: int, seed: int) -> Iterator[str]:
    """Yield sentences of about 25 words, drawn from 50,000 by Zipf's law."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("enirtsadhulcgm", k=draw.randint(2, 10))) for _ in range(50_000)]
    for _ in range(count):
        length = max(1, int(draw.gauss(25, 10)))
        places = (int(50_000 ** draw.random()) - 1 for _ in range(length))
        yield " ".join(words[place] for place in places)


def generate(folder: Path, pairs: int) -> None:
    """Write raw text."""
    for seed, language in enumerate(LANGUAGES):
        for name, count in (("t", pairs), ("v", 1000)):
            with (folder / f"{name}.{language}").open("w") as file:
                file.writelines(f"{line}\n" for line in sentences(count, seed))
    (folder / "corpus.yaml").write_text(CORPUS)


def timed(name: str, pairs: int, command: list[str]) -> float:
    """Run a command, print its line, and return its seconds."""
    memory = 0
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=sys.stderr, process_group=0) as running:
        try:
            while running.poll() is None:
                memory = max(memory, memory_of(running.pid))
                with suppress(subprocess.TimeoutExpired):
                    running.wait(SAMPLING_SECONDS)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    seconds = time.perf_counter() - start
    if running.returncode != 0:
        raise SystemExit(f"{name}: {command} failed")
    row = {
        "name": name,
        "seconds": round(seconds, 1),
        "pairs_per_second": round(pairs / seconds),
        "mib": round(memory / 2**20),
    }
    print(json.dumps(row), flush=True)
    return seconds


def memory_of(group: int) -> int:
    """Return the memory of all processes of a group in bytes; shared memory counts once."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if os.getpgid(int(process.name)) == group:
                rows = (process / "smaps_rollup").read_text()
                found += 1024 * sum(map(int, re.findall(r"^Pss: +(\d+)", rows, re.MULTILINE)))
    return found


def ours(folder: Path, pairs: int, processes: str) -> float:
    """Clean, learn, encode and binarise; return seconds without learning, which stock shares."""
    for name in ("text", "pieces.ours", "bin.ours"):
        (folder / name).mkdir()
    both = ["--languages", "en,de"]
    clean = ["highrank", "data", "clean-texts", str(folder / "corpus.yaml"), str(folder)]
    encode = [sys.executable, "-c", OUR_ENCODER, str(folder), processes]
    binarise = ["highrank", "data", "binarise"]
    binarise += [str(folder / "pieces.ours"), str(folder / "bin.ours")]
    seconds = timed("ours: clean", pairs, [*clean, str(folder / "text"), *both])
    timed("ours: learn", pairs, [sys.executable, "-c", OUR_LEARNER, str(folder)])
    return (
        seconds
        + timed("ours: encode", pairs, encode)
        + timed("ours: binarise", pairs, [*binarise, *both, "--processes", processes])
    )


# `highrank data pieces`, as the recipes for WMT call it, in two parts
OUR_LEARNER = """
import sys
from pathlib import Path
from highrank_plugins.data.pieces import PieceSettings, learn_pieces
folder = Path(sys.argv[1])
texts = [folder / "text" / "train.en", folder / "text" / "train.de"]
learn_pieces(texts, folder / "pieces", PieceSettings(vocab_size=32_000, sample=1_000_000))
"""
OUR_ENCODER = """
import sys
from pathlib import Path
from highrank_plugins.data.pieces import encoder, write_pieces
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    encode = encoder(folder / "pieces.model")
    for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        output = folder / "pieces.ours" / name
        write_pieces(encode, folder / "text" / name, output, int(sys.argv[2]))
"""


def stock(folder: Path, pairs: int, processes: str) -> float:
    """Encode both sides at once, in two processes, and run fairseq-preprocess; return seconds."""
    (folder / "pieces.stock").mkdir()
    encode = 'for file in train.en train.de; do "$0" -c "$1" "$2/pieces.model"'
    encode += ' <"$2/text/$file" >"$2/pieces.stock/$file" & done; wait'
    words = ["bash", "-c", encode, sys.executable, STOCK_ENCODER, str(folder)]
    seconds = timed("stock: encode", pairs, words)
    options = f"--source-lang en --target-lang de --joined-dictionary --workers {processes}"
    train, output = str(folder / "pieces.stock" / "train"), str(folder / "bin.stock")
    command = ["fairseq-preprocess", *options.split(), "--trainpref", train, "--destdir", output]
    return seconds + timed("stock: preprocess", pairs, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=int, nargs="?", default=200_000)
    parser.add_argument("processes", nargs="?", default=str(os.cpu_count()))
    parser.add_argument("--ours", action="store_true", help="leave out fairseq's own tools")
    given = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    total = {"pairs": given.pairs, "processes": int(given.processes)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, given.pairs)
        mine = ours(folder, given.pairs, given.processes)
        total["ours_pairs_per_second"] = round(given.pairs / mine)
        if not given.ours:
            theirs = stock(folder, given.pairs, given.processes)
            compare(folder)
            total["stock_pairs_per_second"] = round(given.pairs / theirs)
            total["ratio"] = round(theirs / mine, 2)
    print(json.dumps(total))


def compare(folder: Path) -> None:
    """Require that both paths wrote the same bytes."""
    for name in ("train.en-de.en.bin", "train.en-de.de.idx", "dict.en.txt"):
        if not filecmp.cmp(folder / "bin.ours" / name, folder / "bin.stock" / name, shallow=False):
            raise SystemExit(f"the two outputs of {name} differ")


if __name__ == "__main__":
    main()
