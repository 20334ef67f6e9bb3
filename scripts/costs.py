"""Measure what a step costs where `highrank bench` has no case: memory, and the processor's time.

    OMP_NUM_THREADS=1 python scripts/costs.py matrices              # vocabulary matrices
    OMP_NUM_THREADS=1 python scripts/costs.py targets LAYER         # softmax, mos or mixtape
    OMP_NUM_THREADS=1 python scripts/costs.py huggingface CLASSES   # layers after a small Llama

prints a line of JSON for each case: the least time of `ROUNDS` steps, forward and backward, which
take turns with those of the other cases; and MiB above what is resident before a step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from highrank_plugins.benchmarks.measuring import alternate, peak_memory, return_free_memory
from highrank_plugins.common.provenance import hardware
from highrank_plugins.heads import build_head, vocabulary_names
from highrank_plugins.losses import targets

ROUNDS = 5
TARGETS: dict[str, tuple[int, int, int, dict[str, Any]]] = {  # tokens, classes, features, options
    "softmax": (512, 32_000, 512, {}),
    "mos": (256, 10_000, 280, {"components": 8}),
    "mixtape": (512, 8_000, 512, {"components": 4, "frequent": 4_000}),
}
LLAMA: dict[str, dict[str, Any]] = {
    "lm_head": {},  # the model's own
    "softmax": {},
    "mixtape": {"components": 4, "frequent_ratio": 0.1, "gate_dim": 64},
    "mos": {"components": 3},
}
Steps = dict[str, Callable[[], None]]


def loss_step(head: Any, features: Any, make: Callable[[], Any], impl: str = "auto") -> None:
    """Compute a loss and its gradients."""
    head.nll(features, make(), reduction="sum", impl=impl).loss.backward()
    head.zero_grad()
    features.grad = None


def matrices() -> Steps:
    """Return a step of a softmax with each vocabulary matrix."""
    tokens, classes, width, _ = TARGETS["softmax"]
    steps: Steps = {}
    for name in sorted(vocabulary_names(), key="plain".__ne__):
        torch.manual_seed(1)
        sizes = {"num_classes": classes, "feature_dim": width}
        options = {"rank": 128} if name == "low_rank" else {}
        head = build_head("softmax", vocabulary=name, **sizes, **options)
        features, words = torch.randn(tokens, width), torch.randint(classes, (tokens,))
        steps[name] = partial(loss_step, head, features, partial(torch.clone, words))
    return steps


def of_targets(layer: str) -> Steps:
    """Return a step of each target; the teacher has the size of the layer."""
    tokens, classes, size, options = TARGETS[layer]
    torch.manual_seed(0)
    sizes = {"num_classes": classes, "feature_dim": size}
    head, teacher = (build_head(layer, **sizes, **options) for _ in range(2))
    teacher.eval()
    x, given = torch.randn(tokens, size, requires_grad=True), torch.randn(tokens, size)
    words = torch.randint(classes, (tokens,))
    log_probs, ids = teacher.top_k(given, 32)
    drawn = targets.draw(teacher, given, 32)
    taught = partial(targets.from_teacher, teacher, given)
    rest = 1 - log_probs.exp().sum(-1)
    made: dict[str, Callable[[], Any]] = {
        "classes": lambda: words,
        **{of: partial(taught, divergence=of) for of in ("forward", "reverse", "jensen_shannon")},
        "32 classes and the rest": lambda: targets.from_top_k(log_probs, ids, rest),
        "32 samples": lambda: targets.from_samples(drawn),
        "entropy": targets.entropy,
    }
    steps: Steps = {name: partial(loss_step, head, x, make) for name, make in made.items()}
    return steps | {"classes, fused": partial(loss_step, head, x, made["classes"], "fused")}


def llama(classes: str) -> Steps:
    """Return a step of a small trunk with the model's own output layer, and with each of ours."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM

    tokens, size = 2_048, 512
    steps: Steps = {}
    for name, options in LLAMA.items():
        torch.manual_seed(0)
        text = LlamaConfig(
            vocab_size=int(classes), hidden_size=size, intermediate_size=size, num_hidden_layers=1,
            num_attention_heads=8, max_position_embeddings=tokens + 1, tie_word_embeddings=False,
        )  # fmt: skip
        config = HighrankConfig(text_config=text, head=name, head_options=options)
        own = name == "lm_head"
        model = AutoModelForCausalLM.from_config(text) if own else HighrankForCausalLM(config)
        ids = torch.randint(5, int(classes), (1, tokens + 1))
        steps[name] = partial(llama_step, model.train(), ids)
    return steps


def llama_step(model: Any, ids: torch.Tensor) -> None:
    """Add to the gradients, which memory does not count, since they are there."""
    model(ids, labels=ids).loss.backward()


def main() -> None:
    kinds: dict[str, Callable[..., Steps]] = {
        "matrices": matrices, "targets": of_targets, "huggingface": llama,
    }  # fmt: skip
    steps = kinds[sys.argv[1]](*sys.argv[2:])
    timings = alternate([*steps.values()], "cpu", ROUNDS)
    least = [min(time.processor for time in times) for times in timings]
    for (name, step), seconds in zip(steps.items(), least, strict=True):
        return_free_memory()
        row = {
            "case": name, "processor_seconds": round(seconds, 3),
            "over_first": round(seconds / least[0], 2),
            "memory_mib": min(peak_memory(step, "cpu") or 0 for _ in range(3)) >> 20,
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "processor": hardware()["processor"], "load": os.getloadavg()[0],
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
