"""Time `highrank evaluate generate` on one process and on two, a thread each, in turns.

    .venv/bin/python scripts/measure_generation.py exp/ui_strings_en_de/mixtape

translates the test set of a run of a translation recipe and compares both outputs. The text is
repeated `--copies` times, so that the start does not hide the search. Prints a line of JSON for
each round, then the median of their ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

LANGUAGES = ("en", "de")


def repeated(run: Path, folder: Path, copies: int) -> None:
    """Binarise the test set of a run with its dictionaries, `copies` times."""
    for language in LANGUAGES:
        text = (run / "pieces" / f"test.{language}").read_text(encoding="utf-8")
        (folder / f"test.{language}").write_text(text * copies, encoding="utf-8")
    source, target = (str(run / "data-bin" / f"dict.{language}.txt") for language in LANGUAGES)
    options = ["--testpref", str(folder / "test"), "--srcdict", source, "--tgtdict", target]
    pair = ["--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1]]
    command = ["fairseq-preprocess", *pair, *options, "--destdir", str(folder / "data-bin")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds(run: Path, folder: Path, processes: int, beam: int) -> float:
    """Return the seconds of the whole command, whose output goes to FOLDER/PROCESSES.txt."""
    program = Path(sys.executable).parent
    user_dir = subprocess.check_output([program / "highrank", "user-dir"], text=True).strip()
    output = folder / f"{processes}.txt"
    output.unlink(missing_ok=True)
    generate = ["fairseq-generate", folder / "data-bin", "--user-dir", user_dir]
    generate += ["--path", run / "average" / "checkpoint.pt", "--beam", beam, "--batch-size", 32]
    command = ["highrank", "evaluate", "generate", "--processes", processes]
    command += ["--output", output, "--"]
    words = [str(word) for word in [*command, *generate]]
    start = time.perf_counter()
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "run", type=Path, help="a run's folder exp/RECIPE/NAME with pieces, data-bin and average"
    )
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["OMP_NUM_THREADS"] = "1"
    ratios = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        repeated(options.run, folder, options.copies)
        for _ in range(options.rounds):
            one, two = (seconds(options.run, folder, count, options.beam) for count in (1, 2))
            if (folder / "1.txt").read_bytes() != (folder / "2.txt").read_bytes():
                raise SystemExit("the outputs of two processes and of one differ")
            ratios.append(one / two)
            row = {"one": round(one, 1), "two": round(two, 1), "ratio": round(one / two, 2)}
            print(json.dumps(row), flush=True)
    sizes = {"beam": options.beam, "copies": options.copies}
    print(json.dumps({**sizes, "median_ratio": round(median(ratios), 2)}))


if __name__ == "__main__":
    main()
