"""Stop, stall and kill real training runs at random moments; report how each of them ended.

    .venv/bin/python scripts/measure_stops.py --runs 10

trains a tiny translation model, again and again from its last checkpoint, and in turns

- sends SIGTERM to `fairseq-train` and to `highrank launch` with two processes: each must end with
  exit code 75 within 20 s, and the next run must resume at the update that was saved;
- stops (SIGSTOP) and kills one of two processes under `highrank launch`: the others must end within
  `--stall-timeout` + 30 s, the last line must name the process, and 10 s later none may be left.

Prints a line of JSON for each run, then a table. The exit code is 1 if a run ended otherwise.
"""

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import highrank_plugins

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.faults.observed_training import ENDING_SECONDS, ObservedTraining, binarise, disturb

TEXT = Path(__file__).parents[1] / "tests" / "text" / "tiny"
STALL_SECONDS = 10
KINDS = {  # name → (uses the launcher, signal, sent to one rank only, seconds to end)
    "SIGTERM to fairseq-train": (False, signal.SIGTERM, False, 20),
    "SIGTERM to highrank launch": (True, signal.SIGTERM, False, 20),
    "SIGSTOP to one rank": (True, signal.SIGSTOP, True, STALL_SECONDS + ENDING_SECONDS),
    "SIGKILL to one rank": (True, signal.SIGKILL, True, STALL_SECONDS + ENDING_SECONDS),
}


def run(kind: str, data: Path, save_dir: Path, log: Path, seed: random.Random) -> dict[str, object]:
    """Start a training run, disturb it at a random moment, and return how it ended."""
    launched, number, one_rank, limit = KINDS[kind]
    before = saved_updates(save_dir)
    training = ObservedTraining(data, save_dir, launched, log, STALL_SECONDS)
    training.wait_for_updates(seed.randint(1, 60))
    time.sleep(seed.random())
    ending = disturb(training, number, seed.randint(0, 1) if one_rank else None)
    result: dict[str, object] = {
        "kind": kind,
        "exit_code": ending.code,
        "seconds": round(ending.seconds, 1),
        "resumed": training.updates()[0] == before + 1,
        "left_over": ending.left_over,
    }
    if one_rank:
        result["named"] = ending.named
        ended = ending.code not in (0, 75) and ending.named
    else:
        result["saved"] = saved_updates(save_dir) == training.updates()[-1]
        ended = ending.code == 75 and bool(result["saved"])
    whole = ended and ending.seconds <= limit and result["resumed"] and not ending.left_over
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
    parser.add_argument(
        "--runs", type=int, default=10, help="number of runs of each kind (default: 10)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random moments (default: 1)"
    )
    options = parser.parse_args()
    highrank_plugins.register()  # allows the classes that checkpoints hold
    seed, results = random.Random(options.seed), []
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = binarise(TEXT, folder)
        for index in range(options.runs):
            for launched in (False, True):  # one process sees other batches than two
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
