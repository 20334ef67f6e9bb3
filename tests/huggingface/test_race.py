"""A race reads the features of a causal language model, and the words that follow, from text."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from highrank_plugins.studies.definition import RaceSettings
from highrank_plugins.studies.trunk import dump, open_trunk, read_texts
from tests.huggingface.tiny import CLASSES, original, transformers
from tests.huggingface.training import tokenizer


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gemma3"])
def test_features_and_score_are_those_of_the_model(name, tmp_path):
    model, text = tmp_path / "model", tmp_path / "text"
    tokenizer().save_pretrained(model)
    original(name).save_pretrained(model)
    text.mkdir()
    draw = np.random.default_rng(3)
    for split in ("train", "valid", "test"):
        rows = [" ".join(f"w{n}" for n in draw.integers(4, CLASSES, 7)) for _ in range(30)]
        (text / f"{split}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    small = {"seeds": 2, "lr": 1e-3, "epochs": 1, "batch": 50, "tokens": 130, "jobs": 1}
    settings = RaceSettings(exp_dir=tmp_path / "race", **small)
    dump(open_trunk(model, str(text), settings), settings)
    features, targets = read_texts(settings)["test"]
    words = (text / "test.txt").read_text().split()[:131]
    ids = torch.tensor([int(word[1:]) for word in words])
    assert torch.equal(targets, ids[1:])
    trunk = torch.load(tmp_path / "race/features/trunk.pt", weights_only=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():  # blocks of 64, the model's longest context
        logits = torch.cat([loaded(part[None]).logits[0] for part in ids[:-1].split(64)])
    assert trunk["loss"] == pytest.approx(float(F.cross_entropy(logits, ids[1:])), rel=1e-6)
    own = features @ trunk["weight"].t()
    cap = loaded.config.to_dict().get("final_logit_softcapping")
    torch.testing.assert_close(cap * (own / cap).tanh() if cap else own, logits)
