"""What the tests of trainers share: a tokenizer, texts, arguments, a spy on the loss."""

import pytest
import torch

pytest.importorskip("accelerate", reason="needs transformers' Trainer")
pytest.importorskip("datasets", reason="needs transformers' Trainer")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.huggingface.tiny import CLASSES, ids

BASE = {
    "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
    "logging_steps": 1, "save_strategy": "no", "dataloader_pin_memory": False,
}  # fmt: skip
ONE_STEP = {
    **BASE, "max_steps": 1, "per_device_train_batch_size": 4, "gradient_checkpointing": False,
    "bf16": False, "max_grad_norm": 0,
}  # fmt: skip


def tokenizer():
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {f"w{i}": i for i in range(4, CLASSES)}
    words_of = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words_of.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words_of, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", padding_side="left",
    )  # fmt: skip


def words(count, seed):
    return " ".join(f"w{max(4, int(i))}" for i in ids(1, count, seed)[0])


def data(count=16):
    """Return rows with labels of different numbers of tokens."""
    rows = []
    for number in range(count):
        row = ids(1, 11, number)[0].tolist()
        first, last = number % 3, 4 + number % 7
        labels = [-100] * first + row[first:last] + [-100] * (11 - last)
        rows.append({"input_ids": row, "attention_mask": [1] * 11, "labels": labels})
    return Dataset.from_list(rows)


def texts(count=8, **answers):
    """Return prompts, and of each answer its least number of words, what it varies by, its seed."""
    rows = []
    for i in range(count):
        drawn = {
            n: " " + words(least + i % of, first + i) for n, (least, of, first) in answers.items()
        }
        rows.append({"prompt": words(4, i), **drawn})
    return Dataset.from_list(rows)


def completions(count=8):
    return texts(count, completion=(3, 5, 100))


def preferences():
    return texts(chosen=(3, 4, 50), rejected=(3, 3, 90))


def trainer_of(kind, arguments, model, rows, **more):
    common = {"train_dataset": rows, "processing_class": tokenizer()}
    return kind(model, args=arguments, **common, **more)


def spied(model):
    """Return a list that gets each fused call of the model: its tensors and its output."""
    seen, compute = [], model.forward

    def spy(*args, **kwargs):
        out = compute(*args, **kwargs)
        if kwargs.get("fused_lm_head"):
            seen.append(({n: v for n, v in kwargs.items() if torch.is_tensor(v)}, out))
        return out

    spy.__wrapped__ = compute
    model.__dict__["forward"] = spy
    return seen


def wanted_log_probs(model, given, temperature=1.0):
    """Return log P of each label of a call [B, T − 1], all log P, and where labels count."""
    with torch.no_grad():
        features = model.model(given["input_ids"], attention_mask=given.get("attention_mask"))
        log_p = model.head.log_probs(features.last_hidden_state)[:, :-1]
        log_p = (log_p / temperature).log_softmax(-1)
    target = given["labels"][:, 1:]
    counts = target != -100
    found = log_p.gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
    return found * counts, log_p, counts
