"""docs/howto/huggingface.md: its table has the rows that are tested, and its examples run."""

import re
from pathlib import Path

import pytest

from tests.docs import examples

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "howto" / "huggingface.md"
PAGE, EXAMPLES = FILE.read_text(encoding="utf-8"), examples(FILE)


def test_every_row_of_the_table_has_a_test():
    tests = "".join(p.read_text() for p in (ROOT / "tests" / "huggingface").glob("test_*.py"))
    rows = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 25 and set(rows) == {*re.findall(r"\b(?:test_)?row_(\d+)_", tests)}


def test_a_new_model_of_the_page_learns():
    pytest.importorskip("transformers", reason="needs transformers (the extra hf)")
    import torch

    names = {}
    exec(EXAMPLES["pretrain"].replace("32_000", "50").replace("256", "32"), names)
    model, tokens = names["model"], torch.arange(60).remainder(7).view(6, 10)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(15):
        losses.append(model(tokens, labels=tokens).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(losses[-1].detach()) < float(losses[0].detach()) / 2
    assert model.head.weight is model.get_input_embeddings().weight


def test_the_page_fine_tunes_a_model(tmp_path, monkeypatch, capsys):
    """Run its lines on a tiny model, without downloads."""
    pytest.importorskip("trl", reason="needs TRL")
    import datasets
    import transformers

    from tests.huggingface.tiny import original
    from tests.huggingface.training import tokenizer, words

    monkeypatch.chdir(tmp_path)
    original(max_position_embeddings=256).save_pretrained("own")
    tokenizer().save_pretrained("own")
    texts = datasets.Dataset.from_list([{"text": words(30, i)} for i in range(100)])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: texts)
    code = EXAMPLES["finetune"].replace("HuggingFaceTB/SmolLM2-135M", "own")
    changed = {"max_steps=200": "max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True"}
    for old, new in changed.items():
        assert old in code
        code = code.replace(old, new)
    names = {}
    exec(code, names)
    assert "context_scale" in capsys.readouterr().out
    assert type(names["model"]).__name__ == "HighrankForCausalLM"
    assert isinstance(names["trainer"].model, transformers.PreTrainedModel)
    losses = [row["loss"] for row in names["trainer"].state.log_history if "loss" in row]
    assert all(0 < loss < 20 for loss in losses)
