"""Test hooks/diverged_checkpoint.py."""

import pytest
import torch
from fairseq.trainer import Trainer

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.trainer import not_finite
from tests.compat.conftest import run_training, translation_options

WEIGHT = "decoder.output_projection.weight"


@pytest.fixture
def broken(translator, tmp_path):
    """Write a checkpoint with one bad number."""
    state = torch.load(translator, weights_only=True)
    state["model"][WEIGHT][5, 0] = torch.nan
    torch.save(state, tmp_path / "broken.pt")
    return tmp_path / "broken.pt"


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_bad_weights_are_refused(data, broken, tmp_path, option):
    options = [*translation_options(**{"--max-update": 4}), option, broken]
    with pytest.raises(UserError, match=f"^{broken}: .*NaN or infinite .{WEIGHT}.*--lr$"):
        run_training(data, tmp_path / "saved", *options)
    assert not list(tmp_path.glob("saved/*.pt"))


def test_a_last_checkpoint_with_bad_weights_is_refused(data, broken, tmp_path):
    broken = broken.rename(tmp_path / "checkpoint_last.pt")
    with pytest.raises(UserError, match=f"^{broken}: .*move this one away"):
        run_training(data, tmp_path, *translation_options(**{"--max-update": 4}))


def test_bad_moments_are_refused(data, translator, tmp_path):
    state = torch.load(translator, weights_only=True)
    state["last_optimizer_state"]["state"][1]["exp_avg_sq"].view(-1)[0] = torch.inf
    torch.save(state, tmp_path / "checkpoint_last.pt")
    options = translation_options(**{"--max-update": 3})
    with pytest.raises(UserError, match=r"moments .*exp_avg_sq of parameter 1.*--reset-optimizer"):
        run_training(data, tmp_path, *options)
    run_training(data, tmp_path, *options, "--reset-optimizer")


def test_bad_averages_are_refused(data, translator, tmp_path):
    state = torch.load(translator, weights_only=True)
    averages = {name: value.clone() for name, value in state["model"].items()}
    averages[WEIGHT][5, 0] = torch.nan
    state["extra_state"]["ema"] = averages
    torch.save(state, tmp_path / "broken.pt")
    options = [
        *translation_options(**{"--max-update": 3}),
        "--restore-file",
        tmp_path / "broken.pt",
    ]
    with pytest.raises(UserError, match=f"averages .*{WEIGHT}.*--store-ema"):
        run_training(data, tmp_path / "saved", *options, "--store-ema", "--allow-changed-options")


def test_stock_starts_training_from_bad_weights(data, broken, tmp_path, stock):
    stock(Trainer, "load_checkpoint")
    options = [*translation_options(**{"--max-update": 4}), "--restore-file", broken]
    with pytest.raises(FloatingPointError) as raised:
        run_training(data, tmp_path / "saved", *options)
    assert "broken.pt" not in str(raised.value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_large_numbers_are_finite(dtype, bad):
    tensors = {"empty": torch.empty(0), "large": torch.zeros(2, 3, dtype=dtype)}
    tensors["large"][0, 0] = torch.finfo(dtype).max
    tensors["large"][1, 2] = torch.finfo(dtype).min
    assert not_finite(tensors) == []
    tensors["large"][1, 1] = bad
    assert not_finite(tensors) == ["large"]
    assert not_finite({}) == []
