"""Compare the cost of targets with that of classes: processor time and peak memory of a step.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/target_costs.py softmax mos mixtape

prints a row of Markdown for each layer and target: the least processor time of 3 rounds, which take
turns, relative to classes with `cpp`; and MiB above the start.
"""

import sys
import time

import torch

from highrank_plugins.benchmarks.measuring import peak_memory, return_free_memory
from highrank_plugins.heads import build_head
from highrank_plugins.losses import targets

ROUNDS = 3
SIZES = {  # tokens, classes, features, options
    "softmax": (512, 32000, 512, {}),
    "mos": (256, 10000, 280, {"components": 8}),
    "mixtape": (512, 8000, 512, {"components": 4, "frequent": 4000}),
}


def steps_of(layer: str):
    """Return a function for each target, which makes the loss and its gradients."""
    tokens, classes, size, options = SIZES[layer]
    torch.manual_seed(0)
    head, teacher = (
        build_head(layer, num_classes=classes, feature_dim=size, **options) for _ in range(2)
    )
    teacher.eval()
    x, given = torch.randn(tokens, size, requires_grad=True), torch.randn(tokens, size)
    words = torch.randint(classes, (tokens,))
    log_probs, ids = teacher.top_k(given, 32)
    rest = 1 - log_probs.exp().sum(-1)
    drawn = targets.draw(teacher, given, 32)
    made = {
        name: (lambda name=name: targets.from_teacher(teacher, given, divergence=name))
        for name in ("forward", "reverse", "jensen_shannon")
    }
    made |= {
        "32 classes and the rest": lambda: targets.from_top_k(log_probs, ids, rest),
        "32 samples": lambda: targets.from_samples(drawn),
        "entropy": targets.entropy,
    }

    def step(target, impl="auto"):
        head.zero_grad()
        x.grad = None
        head.nll(x, target, reduction="sum", impl=impl).loss.backward()

    steps = {"classes": lambda: step(words), "classes, fused": lambda: step(words, "fused")}
    return steps | {name: (lambda make=make: step(make())) for name, make in made.items()}


for layer in sys.argv[1:] or SIZES:
    steps = steps_of(layer)
    least = dict.fromkeys(steps, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn:
                least[name] = min(least[name], time.process_time() - start)
    for name, step in steps.items():
        return_free_memory()
        memory = (peak_memory(step, "cpu") or 0) / 2**20
        print(
            f"| {layer} | {name} | {least[name] / least['classes']:.2f} | {memory:.0f} |",
            flush=True,
        )
