"""Measure memory and processor time of a training step with a large vocabulary, in transformers.

    OMP_NUM_THREADS=1 python scripts/huggingface_cost.py [CASE …]

One layer of Llama, V = 128,000, 2,048 tokens, d = 512, float32, on a CPU. A case has a process
of its own: memory is the largest peak of a step above the resident size before it, without the
gradients of parameters, which exist by then. Time is the processor's, of all threads.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CLASSES, TOKENS, SIZE, STEPS = 128_000, 2_048, 512, 3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lm_head": ("", {}),
    "softmax": ("softmax", {}),
    "mixtape": ("mixtape", {"components": 4, "frequent": CLASSES // 10, "gate_dim": 64}),
    "mos": ("mos", {"components": 3}),
}


def model_of(case: str) -> Any:
    """Return a small trunk with the model's own output layer, or one of ours."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM

    torch.manual_seed(0)
    text = LlamaConfig(
        vocab_size=CLASSES, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=1,
        num_attention_heads=8, max_position_embeddings=TOKENS + 1, tie_word_embeddings=False,
    )  # fmt: skip
    head, options = CASES[case]
    if not head:
        return AutoModelForCausalLM.from_config(text)
    return HighrankForCausalLM(HighrankConfig(text_config=text, head=head, head_options=options))


def mebibytes(key: str) -> float:
    """Return a number of this process's memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def measure(case: str) -> tuple[float, float]:
    """Return MiB above the resident size, and seconds of the processor, of the best later step."""
    import torch

    model, best, memory = model_of(case).train(), float("inf"), 0.0
    tokens = torch.randint(5, CLASSES, (1, TOKENS + 1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(STEPS):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before, start = mebibytes("VmRSS"), time.process_time()
        model(tokens, labels=tokens).loss.backward()
        best = min(best, time.process_time() - start)
        memory = max(memory, mebibytes("VmHWM") - before)
    return memory, best


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(*measure(sys.argv[2]))
        return
    first: list[float] = []
    for case in sys.argv[1:] or CASES:
        command = [sys.executable, __file__, "--one", case]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        memory, seconds = map(float, found.split())
        first = first or [memory, seconds]
        print(
            f"{case:8} {memory:6.0f} MiB, 1/{first[0] / memory:.1f}; {seconds:6.1f} s of the "
            f"processor, {seconds / first[1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
