"""A race reads the features of a causal language model, and the words that follow, from text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from highrank_plugins.common.files import files_digest
from highrank_plugins.studies.definition import RaceSettings
from highrank_plugins.studies.race import race
from highrank_plugins.studies.trunk import dump, open_trunk, read_texts
from tests.huggingface.tiny import CLASSES, original, transformers


def write(folder: Path, name: str, **more) -> tuple[Path, Path, RaceSettings]:
    """Write a model with a tokenizer of words, and three texts of them; return settings, too."""
    pytest.importorskip("tokenizers")
    from tests.huggingface.training import tokenizer

    tokenizer().save_pretrained(folder / "model")
    original(name, **more).save_pretrained(folder / "model")
    (folder / "text").mkdir()
    draw = np.random.default_rng(3)
    for split in ("train", "valid", "test"):
        rows = [" ".join(f"w{n}" for n in draw.integers(4, CLASSES, 7)) for _ in range(30)]
        (folder / "text" / f"{split}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    small = {"seeds": 2, "lr": 1e-3, "epochs": 1, "batch": 50, "tokens": 130, "jobs": 1}
    return folder / "model", folder / "text", RaceSettings(exp_dir=folder / "race", **small)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gemma3"])
def test_features_and_score_are_those_of_the_model(name, tmp_path):
    model, text, settings = write(tmp_path, name)
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


def test_a_model_races_resumes_and_is_told_from_another(tmp_path):
    pytest.importorskip("fairseq", reason="`highrank race` needs the whole package")
    model, text, settings = write(tmp_path, "gpt2")
    words = model, str(text), settings, ["softmax", "mos"], [1.0]
    (table,) = race(*words)[:1]
    record = json.loads((tmp_path / "race/runs/1/softmax-1.json").read_text())
    own = torch.load(tmp_path / "race/features/trunk.pt", weights_only=True)["loss"]
    assert record["metrics"]["trunk_test_perplexity"] == pytest.approx(math.exp(own), rel=1e-4)
    assert "the trunk was trained with softmax" in " ".join(table.notes)
    (tmp_path / "race/features/trunk.pt").unlink()  # as if killed before it was written
    assert race(*words)[0] == table
    (text / "test.txt").write_text("w5 w6 w7\n")
    with pytest.raises(ValueError, match="is of another race: text of test was"):
        race(*words)
    original("gpt2", seed=1).save_pretrained(model)
    files_digest.cache_clear()  # as in another process
    with pytest.raises(ValueError, match="is of another race: checkpoint was"):
        race(*words)
    for path in (text / "valid.txt", model / "config.json"):
        path.unlink()
        with pytest.raises(ValueError, match=f"{path.name}: no such file"):
            open_trunk(model, str(text), settings)
        path.touch()
