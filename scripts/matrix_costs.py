"""Measure what each vocabulary matrix costs beside a plain one: the table of reference/heads.md.

    python scripts/matrix_costs.py [ROUNDS]

prints processor time of one thread, the least of ROUNDS (4) turns, and the peak of memory, for one
loss of a softmax with its backward pass.
"""

import sys
import time

import torch

from highrank_plugins.benchmarks.measuring import peak_memory, return_free_memory
from highrank_plugins.heads import build_head, vocabulary_names

TOKENS, CLASSES, WIDTH = 512, 32_000, 512
OPTIONS = {"low_rank": {"rank": 128}}
MIB = 2**20


def steps():
    """Return a step of each matrix by name."""
    found = {}
    for name in sorted(vocabulary_names(), key="plain".__ne__):
        torch.manual_seed(1)
        sizes = {"num_classes": CLASSES, "feature_dim": WIDTH}
        head = build_head("softmax", vocabulary=name, **sizes, **OPTIONS.get(name, {}))
        features, target = torch.randn(TOKENS, WIDTH), torch.randint(CLASSES, (TOKENS,))

        def step(head=head, features=features, target=target):
            head.nll(features, target, reduction="sum").loss.backward()
            head.zero_grad()

        found[name] = step
    return found


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds, found = int(sys.argv[1]) if len(sys.argv) > 1 else 4, steps()
    least = dict.fromkeys(found, float("inf"))
    for _ in range(rounds):
        for name, step in found.items():
            start = time.process_time()
            step()
            least[name] = min(least[name], time.process_time() - start)
    print("| matrix | ms | × plain | peak, MiB | more than plain, in matrices |")
    print("|---|---|---|---|---|")
    peaks = {}
    for name, step in found.items():
        return_free_memory()
        peaks[name] = peak_memory(step, "cpu") or 0
        more = (peaks[name] - peaks["plain"]) / (4 * CLASSES * WIDTH)
        print(f"| {name} | {1e3 * least[name]:.0f} | {least[name] / least['plain']:.2f} | "
              f"{peaks[name] / MIB:.0f} | {more:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
