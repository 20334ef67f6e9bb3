"""Compare output layers in fine-tuning; each begins as the trained softmax of a tiny Llama.

    python -m scripts.huggingface_study FOLDER      # a record for each layer and seed

Each seed trains a Llama of its own on documentation of sympy, scipy and matplotlib. Every layer is
then fine-tuned from a copy of it on documentation of numpy and networkx, with the same batches, by
two learning rates. The one with the least validation loss counts.
"""

from __future__ import annotations

import copy
import hashlib
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from highrank_plugins.common.files import write_json
from highrank_plugins.common.provenance import git_state, hardware, versions
from highrank_plugins.huggingface import replace_head
from recipes.own_language_model.documentation import SHA256, sentences

FIRST = ("sympy", "scipy", "matplotlib")
WORDS, WIDTH, LENGTH, ROWS = 4_000, 96, 32, 16
PRETRAINING, FINETUNING, RATE = 1_200, 250, 2e-3
RATES = (1e-3, 3e-3)
# moc has the parameters of mos and one softmax; tanh is the layer of contexts alone
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "tanh": ("moc", {"components": 1}),
    "moc": ("moc", {"components": 4}),
    "mos": ("mos", {"components": 4}),
    "mixtape": ("mixtape", {"components": 4, "frequent": WORDS // 10}),
}


def read_texts() -> tuple[dict[str, Tensor], str, int]:
    """Return token ids of all texts, their digest, and the size of the vocabulary."""
    own = list(dict.fromkeys(sentences()))
    if hashlib.sha256("".join(f"{line}\n" for line in own).encode()).hexdigest() != SHA256:
        sys.exit("error: other packages than requirements/pinned.txt; run bash scripts/setup.sh")
    first = list(dict.fromkeys(sentences(FIRST)))
    first = [line for line in first if line not in set(own)]
    cut, end = len(own) * 8 // 10, len(own) * 9 // 10
    lines = {"first": first, "train": own[:cut], "valid": own[cut:end], "test": own[end:]}
    counts = Counter(" ".join(lines["first"] + lines["train"]).split())
    known = {word: 2 + n for n, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    ids = {
        name: torch.tensor([i for x in of for i in (*(known.get(w, 1) for w in x.split()), 0)])
        for name, of in lines.items()
    }
    digest = hashlib.sha256("\n".join(x for of in lines.values() for x in of).encode())
    return ids, digest.hexdigest(), WORDS


def rows_of(ids: Tensor) -> Tensor:
    """Cut a text into rows that overlap by a token, so that each is predicted once."""
    return ids.unfold(0, LENGTH + 1, LENGTH)


@torch.no_grad()
def loss_of(model: Any, ids: Tensor) -> float:
    """Return the mean loss of a text in nats."""
    rows, training = rows_of(ids), model.training
    total = sum(
        float(model.train()(part, labels=part).loss) * len(part) for part in rows.split(4 * ROWS)
    )
    model.train(training)
    return total / len(rows)


def train(
    model: Any, ids: dict[str, Tensor], plan: tuple[str, int, float], seed: int
) -> dict[str, float]:
    """Train a model on shuffled rows, by AdamW with a linear warm-up and decay."""
    name, steps, rate = plan
    rows, generator = rows_of(ids[name]), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, (steps - step) / (steps - 49))
    )
    order, start = torch.empty(0, dtype=torch.long), time.process_time()
    for _ in range(steps):
        if len(order) < ROWS:
            order = torch.cat([order, torch.randperm(len(rows), generator=generator)])
        batch, order = rows[order[:ROWS]], order[ROWS:]
        model.train()(batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    seconds = time.process_time() - start
    return {
        "updates": steps, "words_per_second": round(steps * ROWS * LENGTH / seconds, 1),
        "valid_loss": loss_of(model, ids["valid"]) / math.log(2),
    }  # fmt: skip


def pretrained(ids: dict[str, Tensor], seed: int) -> Any:
    """Return a tiny Llama, trained on the first text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=LENGTH + 1, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    found = train(model, ids, ("first", PRETRAINING, RATE), seed)
    print(seed, "pretrained", found, flush=True)
    return model


def unigram(ids: dict[str, Tensor], words: int) -> float:
    """Return the test perplexity of the words' counts in the text of the fine-tuning."""
    counts = torch.bincount(ids["train"], minlength=words) + 1.0
    return math.exp(-float((counts / counts.sum()).log()[ids["test"]].mean()))


def tuned(base: Any, layer: str, ids: dict[str, Tensor], seed: int) -> dict[str, Any]:
    """Return metrics, configuration and training of a layer with its best learning rate."""
    head, options = LAYERS[layer]
    best: dict[str, Any] = {}
    for rate in RATES:
        torch.manual_seed(seed)
        given: dict[str, Any] = (
            {} if layer == "softmax" else {"batch": rows_of(ids["train"])[:ROWS]}
        )
        model = replace_head(copy.deepcopy(base), head, **given, **options)
        begun = loss_of(model, ids["test"])
        found = train(model, ids, ("train", FINETUNING, rate), seed)
        if not best or found["valid_loss"] < best["train"]["valid_loss"]:
            ended = loss_of(model, ids["test"])
            found["parameters"] = sum(p.numel() for p in model.parameters())
            scores = {"test_perplexity": math.exp(ended), "start_perplexity": math.exp(begun)}
            best = {"train": found, "metrics": scores, "rate": rate}
    return best


def main(arguments: Sequence[str]) -> None:
    """Write the records of all seeds and layers."""
    torch.set_num_threads(1)
    ids, digest, words = read_texts()
    floor = unigram(ids, words)
    signature = f"tokens:{rows_of(ids['test']).size(0) * LENGTH}|words:{words}"
    print({name: len(of) for name, of in ids.items()}, f"unigram {floor:.2f}", flush=True)
    for seed in (1, 2, 3):
        base = pretrained(ids, seed)
        for layer, (head, options) in LAYERS.items():
            best = tuned(base, layer, ids, seed)
            names = ("test_perplexity", "test_unigram_perplexity")
            record = {
                "metrics": best["metrics"] | {names[1]: floor},
                "signature": signature, "signatures": dict.fromkeys(names, signature),
                "config": {"train": {"head": head, **options, "updates": FINETUNING}},
                "learning_rate": best["rate"], "seeds": [seed], "data": digest,
                "command": f"python -m scripts.huggingface_study {arguments[0]}",
                "train": best["train"], "versions": versions(), "git": git_state(),
                "hardware": hardware(),
            }  # fmt: skip
            write_json(Path(arguments[0]) / f"{layer}-{seed}.json", record)
            print(layer, seed, best, f"{time.process_time():.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
