"""The largest batch within a memory limit: the papers' "same memory" comparison."""

from __future__ import annotations

from dataclasses import replace

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.process import ContenderFailed, OutOfMemory, peak

STEP = 64  # tokens; finer differences are noise
MOST = 2**17


def largest_batch(case: LossCase, contender: str, limit: int, threads: int) -> LossCase:
    """`case` with as many tokens, a multiple of 64, as keep the peak within `limit` bytes.

    Raises:
        ContenderFailed: not even 64 tokens fit, or something else went wrong.
    """

    def fits(steps: int) -> bool:
        try:
            memory = peak("loss", replace(case, tokens=steps * STEP), contender, threads)
        except OutOfMemory:
            return False
        return memory is not None and memory <= limit

    if not fits(1):
        raise ContenderFailed(
            f"--within: {limit // 2**20} MiB do not hold {STEP} tokens of {contender}; raise it"
        )
    good, bad = 1, 2
    while bad * STEP <= MOST and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, MOST // STEP + 1)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return replace(case, tokens=good * STEP)
