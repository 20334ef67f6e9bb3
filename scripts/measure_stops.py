"""Stop, stall and kill real trainings at random moments; report how each of them ended.

    .venv/bin/python scripts/measure_stops.py --runs 10

trains a tiny translation model, again and again from its last checkpoint, and in turns

- sends SIGTERM to `fairseq-train` and to `highrank launch` with two processes: each must end with
  exit code 75 within 20 s, and the next run must resume at the update that was saved;
- stops (SIGSTOP) and kills one of two processes under `highrank launch`: the others must end within
  `--stall-timeout` + 30 s, the last line must name the process, and 10 s later none may be left.

Prints a line of JSON for each run, then a table; the exit code is 1 if anything was otherwise.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAMS = Path(sys.executable).parent
TEXT = Path(__file__).parents[1] / "tests" / "text" / "tiny"
STALL_SECONDS = 10
OPTIONS = """--source-lang en --target-lang de --arch transformer_softmax_tiny --optimizer adam
    --lr 0.005 --max-tokens 500 --no-progress-bar --no-epoch-checkpoints
    --criterion highrank_cross_entropy --encoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --encoder-layers 1 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-layers 1
    --encoder-attention-heads 2 --decoder-attention-heads 2 --log-interval 1
    --save-interval-updates 25 --keep-interval-updates 1 --max-update 1000000""".split()
LAUNCH = ["launch", "--processes", "2", "--stall-timeout", str(STALL_SECONDS), "--"]
KINDS = {  # name → through the launcher, signal, to one rank, seconds to end in
    "SIGTERM to fairseq-train": (False, signal.SIGTERM, False, 20),
    "SIGTERM to highrank launch": (True, signal.SIGTERM, False, 20),
    "SIGSTOP to one rank": (True, signal.SIGSTOP, True, STALL_SECONDS + 30),
    "SIGKILL to one rank": (True, signal.SIGKILL, True, STALL_SECONDS + 30),
}


def binarise(folder: Path) -> Path:
    """Binarise the text of the tests, and return the folder of the data."""
    data = folder / "data-bin"
    prefixes = [f"--{part}pref={TEXT / part}" for part in ("train", "valid", "test")]
    words = ["fairseq-preprocess", *prefixes, "--source-lang", "en", "--target-lang", "de"]
    with (folder / "preprocess.log").open("wb") as log:
        line = [PROGRAMS / words[0], *words[1:], "--destdir", data]
        subprocess.run(line, check=True, stdout=log, stderr=log)
    return data


class Training:
    """A training in a process group of its own, whose output goes to a file."""

    def __init__(self, data: Path, save_dir: Path, launched: bool, log: Path) -> None:
        words = ["fairseq-train", str(data), *OPTIONS, "--save-dir", str(save_dir)]
        if launched:
            line = [str(PROGRAMS / "highrank"), *LAUNCH, *words]
        else:
            user_dir = Path(__file__).parents[1] / "highrank_plugins"
            line = [str(PROGRAMS / words[0]), *words[1:], "--cpu", "--user-dir", str(user_dir)]
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                line, stdout=file, stderr=file, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip

    def output(self) -> str:
        """Return what it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def updates(self) -> list[int]:
        """Return the updates that it has logged."""
        return [int(number) for number in re.findall(r"num_updates=(\d+),", self.output())]

    def wait_for_updates(self, number: int) -> None:
        """Wait until it has logged so many updates; raise RuntimeError if it ends before."""
        while len(self.updates()) < number:
            if self.process.poll() is not None:
                raise RuntimeError(self.output()[-3000:])
            time.sleep(0.05)

    def rank(self, number: int) -> int:
        """Return the process that trains as a rank."""
        wanted = f"RANK={number}".encode()
        parent = self.process.pid  # not that of a rank's own workers, whose environment is equal
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for process in map(int, children):
            environ = Path(f"/proc/{process}/environ")
            if wanted in environ.read_bytes().split(b"\0"):
                return process
        raise RuntimeError(f"rank {number} does not run")


def members(group: int) -> list[int]:
    """Return the processes of a group that run, those that load data among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def left_of(group: int, seconds: float = 10) -> int:
    """Return how many processes of a group run after some seconds."""
    end = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < end:
        time.sleep(0.1)  # workers that load data look for their parent every 5 seconds
    return len(left)


def run(kind: str, data: Path, save_dir: Path, log: Path, seed: random.Random) -> dict[str, object]:
    """Start a training, disturb it at a random moment, and return how it ended."""
    launched, number, one_rank, limit = KINDS[kind]
    before = saved_updates(save_dir)
    training = Training(data, save_dir, launched, log)
    training.wait_for_updates(seed.randint(1, 60))
    time.sleep(seed.random())
    rank = seed.randint(0, 1)
    began = time.monotonic()
    os.kill(training.rank(rank) if one_rank else training.process.pid, number)
    code = training.process.wait(300)
    seconds = time.monotonic() - began
    last_line = training.output().splitlines()[-1]
    result: dict[str, object] = {
        "kind": kind,
        "exit_code": code,
        "seconds": round(seconds, 1),
        "resumed": training.updates()[0] == before + 1,
        "left_over": left_of(training.process.pid),
    }
    if one_rank:
        named = f"rank {rank} was killed" if number == signal.SIGKILL else f"rank {rank} (process"
        result["named"] = named in last_line
        ended = code not in (0, 75) and result["named"]
    else:
        result["saved"] = saved_updates(save_dir) == training.updates()[-1]
        ended = code == 75 and result["saved"]
    whole = ended and seconds <= limit and result["resumed"] and not result["left_over"]
    return result | {"as_promised": bool(whole)}


def saved_updates(save_dir: Path) -> int:
    """Return the number of updates in the last checkpoint; 0 without one."""
    import torch

    path = save_dir / "checkpoint_last.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, map_location="cpu")
    return int(state["optimizer_history"][-1]["num_updates"])


def main() -> None:
    """Run all kinds in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="of each kind (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    options = parser.parse_args()
    import highrank_plugins

    highrank_plugins.register()  # what checkpoints may hold
    seed, results = random.Random(options.seed), []
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = binarise(folder)
        for index in range(options.runs):
            for launched in (False, True):  # one process and two see other batches
                for kind in (kind for kind in KINDS if KINDS[kind][0] == launched):
                    save_dir = folder / ("two" if launched else "one")
                    results.append(run(kind, data, save_dir, folder / "log", seed))
                    print(json.dumps({"run": index + 1} | results[-1]), flush=True)
    print("\n| disturbance | runs | as promised | slowest end, s |\n|---|---|---|---|")
    for kind in KINDS:
        rows = [result for result in results if result["kind"] == kind]
        slowest = max(float(str(row["seconds"])) for row in rows)
        print(f"| {kind} | {len(rows)} | {sum(bool(r['as_promised']) for r in rows)} | {slowest} |")
    sys.exit(0 if all(result["as_promised"] for result in results) else 1)


if __name__ == "__main__":
    main()
