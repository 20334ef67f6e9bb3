"""docs/howto/huggingface.md: its table has the rows that are tested, and its examples run."""

import json
import re
from pathlib import Path

import pytest

from tests.docs import examples

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "howto" / "huggingface.md"
PAGE, EXAMPLES = FILE.read_text(encoding="utf-8"), examples(FILE)


def test_every_row_of_the_table_has_a_test_and_costs_are_those_of_their_records():
    tests = "".join(p.read_text() for p in (ROOT / "tests" / "huggingface").glob("test_*.py"))
    rows = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 25 and set(rows) == {*re.findall(r"\b(?:test_)?row_(\d+)_", tests)}


CASES = {
    "lm_head": "the model's own `lm_head` and cross-entropy", "softmax": "softmax",
    "mixtape": "Mixtape, K = 4, a tenth of the classes frequent", "mos": "MoS, K = 3",
}  # fmt: skip


@pytest.mark.parametrize("classes", [50_000, 128_000])
def test_costs_are_those_of_their_records(classes):
    lines = (ROOT / "docs" / "benchmarks" / "huggingface_step.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["classes"] == classes]
    found = {case: [row for row in rows if row["case"] == case] for case in CASES}
    own = found["lm_head"]
    for case, measured in found.items():
        memory = measured[0]["memory_mib"]
        cells = [CASES[case], f"{memory:,} MiB", f"{own[0]['memory_mib'] / memory:.1f}"]
        for row, base in zip(measured, own, strict=True):
            seconds = row["processor_seconds"]
            cells.append(f"{seconds:.1f} s ({seconds / base['processor_seconds']:.2f})")
        assert f"| {' | '.join(cells)} |" in PAGE


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
