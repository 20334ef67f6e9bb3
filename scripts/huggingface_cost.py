"""Measure memory and processor time of a training step with a large vocabulary, in transformers.

    OMP_NUM_THREADS=1 python scripts/huggingface_cost.py [CLASSES [CASE …]]

One layer of Llama, V = 128,000, 2,048 tokens, d = 512, float32, on a CPU. A case has a process
of its own: memory is the largest peak of a step above the resident size before it, without the
gradients of parameters, which exist by then. Time is the processor's, of all threads. Each case is
printed as a line for docs/benchmarks/huggingface_step.jsonl, from which `table` is made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOKENS, SIZE, STEPS = 2_048, 512, 3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lm_head": ("", {}),
    "softmax": ("softmax", {}),
    "mixtape": ("mixtape", {"components": 4, "frequent_ratio": 0.1, "gate_dim": 64}),
    "mos": ("mos", {"components": 3}),
}
NAMES = {
    "lm_head": "the model's own `lm_head` and cross-entropy", "softmax": "softmax",
    "mixtape": "Mixtape, K = 4, a tenth of the classes frequent", "mos": "MoS, K = 3",
}  # fmt: skip


def model_of(case: str, classes: int) -> Any:
    """Return a small trunk with the model's own output layer, or one of ours."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from highrank_plugins.huggingface import HighrankConfig, HighrankForCausalLM

    torch.manual_seed(0)
    text = LlamaConfig(
        vocab_size=classes, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=1,
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


def measure(case: str, classes: int) -> dict[str, Any]:
    """Return MiB above the resident size, and seconds of the processor, of the best step."""
    import torch
    import transformers

    from highrank_plugins.common.provenance import hardware

    model, best, memory = model_of(case, classes).train(), float("inf"), 0.0
    tokens = torch.randint(5, classes, (1, TOKENS + 1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(STEPS):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before, start = mebibytes("VmRSS"), time.process_time()
        model(tokens, labels=tokens).loss.backward()
        best = min(best, time.process_time() - start)
        memory = max(memory, mebibytes("VmHWM") - before)
    return {
        "case": case, "classes": classes, "threads": torch.get_num_threads(),
        "memory_mib": round(memory), "processor_seconds": round(best, 2),
        "torch": torch.__version__, "transformers": transformers.__version__,
        "processor": hardware()["processor"], "load": os.getloadavg()[0],
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]], classes: int) -> str:
    """Return memory and time of each case as Markdown, as shares of the model's own."""
    found = {(row["case"], row["threads"]): row for row in rows if row["classes"] == classes}
    threads = sorted({count for _, count in found})
    times = " | ".join(f"{n} thread{'s' * (n > 1)}" for n in threads)
    lines = [f"| output layer | memory | less by | {times} |", "|---" * (3 + len(threads)) + "|"]
    for case, name in NAMES.items():
        memory, own = (found[of, threads[0]]["memory_mib"] for of in (case, "lm_head"))
        cells = [name, f"{memory:,} MiB", f"{own / memory:.1f}"]
        for n in threads:
            time_of, base = (found[of, n]["processor_seconds"] for of in (case, "lm_head"))
            cells.append(f"{time_of:.1f} s ({time_of / base:.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    classes = (sys.argv[1:] or ["128000"])[0]
    for case in sys.argv[2:] or CASES:
        subprocess.run([sys.executable, __file__, "--one", case, classes], check=True)


if __name__ == "__main__":
    main()
