"""transformers' Trainer: accumulation, evaluation, label smoothing."""

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (the extra hf)")

from transformers import Trainer, TrainingArguments
from transformers.models.auto import modeling_auto

from tests.huggingface.tiny import CLASSES, HEADS, make, numbers
from tests.huggingface.training import BASE, data

SOME = ["softcap", "mixtape", "mos_plif"]


class InOrder(Trainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset or self.train_dataset)


def trained(model, folder, batch, accumulated):
    arguments = TrainingArguments(
        folder, **BASE, per_device_train_batch_size=batch, max_steps=2, max_grad_norm=0,
        gradient_accumulation_steps=accumulated, optim="sgd",
    )  # fmt: skip
    trainer = InOrder(model, arguments, train_dataset=data())
    trainer.train()
    return numbers(model), [row["loss"] for row in trainer.state.log_history if "loss" in row]


def largest_difference(a, b):
    return max(float((a[n] - b[n]).abs().max() / a[n].abs().max().clamp(min=1e-30)) for n in a)


@pytest.mark.parametrize("head", SOME)
def test_row_3_eight_times_one_is_one_times_eight(head, tmp_path):
    one, losses = trained(make(head=head).double(), tmp_path, 8, 1)
    eight, accumulated = trained(make(head=head).double(), tmp_path, 1, 8)
    assert largest_difference(one, eight) < 1e-12
    assert losses == pytest.approx(accumulated, abs=1e-6)


@pytest.mark.parametrize("head", SOME)
def test_row_4_evaluation_has_a_loss(head, tmp_path):
    model, rows = make(head=head), data()
    arguments = TrainingArguments(tmp_path, **BASE, per_device_eval_batch_size=4)
    trainer = Trainer(model, arguments, eval_dataset=rows)
    found = trainer.evaluate()["eval_loss"]
    if not hasattr(trainer, "_loss_shifts_labels"):
        pytest.skip("this Trainer counts labels before they are shifted, for every model")
    means = []
    for start in range(0, 16, 4):
        batch = {k: torch.tensor(v) for k, v in rows[start : start + 4].items()}
        with torch.no_grad():
            means.append(float(model(**batch).loss))
    assert found == pytest.approx(sum(means) / 4, abs=2e-6)
    assert trainer.label_names == ["labels"]
    assert trainer.predict(data(4)).predictions.shape == (4, 11, CLASSES)


@pytest.mark.parametrize("head", HEADS)
def test_row_22_label_smoothing_shifts_labels(head, tmp_path, monkeypatch):
    model = make(head=head).train()
    arguments = TrainingArguments(tmp_path, **BASE, label_smoothing_factor=0.1)
    trainer = Trainer(model, arguments, train_dataset=data())
    batch = trainer.data_collator([data()[i] for i in range(8)])
    found = trainer.compute_loss(model, dict(batch))
    features, target = model.model(batch["input_ids"]).last_hidden_state, batch["labels"][:, 1:]
    kept = target != -100
    smooth = 0.1 * (CLASSES - 1) / CLASSES
    wanted = model.head.nll(
        features[:, :-1][kept], target[kept], label_smoothing=smooth, reduction="mean"
    )
    torch.testing.assert_close(found, wanted.loss, rtol=0, atol=1e-6)
    monkeypatch.delitem(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "highrank")
    assert abs(float((trainer.compute_loss(model, dict(batch)) - wanted.loss).detach())) > 1e-3
