"""Run fairseq-generate on several processes; the output equals that of one, in input order."""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from highrank_plugins.common.processes import console_script, end_with_parent, usable_cores
from highrank_plugins.training.launch.plan import check_program, refuse_missing

PROGRAM = "fairseq-generate"
SKIPS = "--skip-invalid-size-inputs-valid-test"
# S-0, T-0, H-0, D-0, P-0, A-0, I-0 and E-0_1 of sentence 0, each before a tab
_LINE = re.compile(rb"[A-Z]-(\d+)(?:_\d+)?\t")
# the log of hooks/evaluation.py
_TOTAL = re.compile(rb" \| .*: scores [\d,]+ of ([\d,]+) samples")
_REFUSED = {
    "--distributed-world-size": "the launcher sets it",
    "--distributed-rank": "the launcher sets it",
    "--num-shards": "fairseq-generate ignores it",
    "--shard-id": "fairseq-generate ignores it",
    "--results-path": "redirect the output, or use --output",
    "--quiet": "there is nothing to merge",
}


def check_command(command: Sequence[str], processes: int) -> None:
    """Refuse a command that cannot be spread over processes."""
    check_program(command, PROGRAM, _REFUSED)
    if processes > 1 and "--sampling" in command:
        raise ValueError(
            "--sampling draws other hypotheses with several processes; use one process"
        )


def generate(command: Sequence[str], processes: int) -> list[bytes]:
    """Return fairseq-generate's lines about each sentence, sorted by its number, without the BLEU.

    Processes get whole batches, so each batch is computed as by one process. They share the GPUs,
    or the CPU's cores.
    """
    check_command(command, processes)
    refuse_missing(command)
    with TemporaryDirectory(prefix="highrank-generate-") as folder:
        shares = [Path(folder, f"share{index}") for index in range(processes)]
        _run(command, shares)
        numbered, totals = zip(*map(_read, shares), strict=True)
    _check_complete(numbered, max(totals), skips=SKIPS in command)
    merged = sorted((pair for share in numbered for pair in share), key=lambda pair: pair[0])
    return [line for _, line in merged]


def _run(command: Sequence[str], shares: list[Path]) -> None:
    """Write a share of the output into each file, and a log beside it."""
    environments, count, running = _environments(len(shares)), str(len(shares)), []
    program = console_script(PROGRAM)
    for index, share in enumerate(shares):
        place = ["--distributed-world-size", count, "--distributed-rank", str(index)]
        with share.open("wb") as out, share.with_suffix(".log").open("wb") as log:
            running.append(subprocess.Popen(
                [program, *command[1:], *place], stdout=out, stderr=None if index == 0 else log,
                env=os.environ | environments[index], preexec_fn=end_with_parent,
            ))  # fmt: skip
    try:
        is_running = True
        while is_running:
            time.sleep(0.05)
            is_running = any([process.poll() is None for process in running])
            for index, process in enumerate(running):
                if code := process.returncode:
                    log_text = shares[index].with_suffix(".log").read_text(errors="replace")
                    last = log_text.strip().splitlines()[-3:]
                    failed = f"{PROGRAM} {index} of {count} failed: exit {code}"
                    raise ValueError("\n".join([failed, *last]))
    finally:
        for process in running:
            process.kill()
            process.wait()


def _environments(processes: int) -> list[dict[str, str]]:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        threads = max(1, usable_cores() // processes)
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}] * processes
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": names[index % count]} for index in range(processes)]


def _read(share: Path) -> tuple[list[tuple[int, bytes]], int]:
    """Return lines with numbers, and how many sentences the data have, 0 if that is not logged."""
    numbered, total = [], 0
    for file in (share, share.with_suffix(".log")):
        with file.open("rb") as lines:
            for line in lines:
                if match := _LINE.match(line):
                    if file == share:
                        numbered.append((int(match[1]), line))
                elif not total and (match := _TOTAL.search(line)):
                    total = int(match[1].replace(b",", b""))
    return numbered, total


def _check_complete(numbered: Sequence[list[tuple[int, bytes]]], total: int, skips: bool) -> None:
    counts = Counter(n for share in numbered for n in {number for number, _ in share})
    total = max(total, max(counts, default=-1) + 1)
    if not total or (wrong := [number for number in range(total) if counts[number] != 1]):
        lost = f"{len(wrong):,} of {total:,} sentences have no translation, or two; the first are "
        lost += f"{wrong[:10]}, counted from 0"
        hint = f". {SKIPS} leaves sentences out: shorten or remove them" if skips else ""
        what = lost + hint if total else "nothing was printed"
        raise ValueError(f"the output of {PROGRAM} is incomplete: {what}")
