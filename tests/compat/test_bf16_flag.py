"""Test compat/bf16_flag.py."""

import pytest
import torch
from fairseq import options

import highrank_plugins.compat.bf16_flag  # noqa: F401  (importing it applies the repair)
from tests.compat.conftest import config, run_training, translation_options


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_does_not_turn_tpu_on(data, flag):
    common = config("training", data, *translation_options(), flag).common
    assert common.bf16 and not common.tpu


def test_an_explicit_tpu_flag_is_kept(data):
    assert config("training", data, *translation_options(), "--bf16", "--tpu").common.tpu


def test_stock_turns_tpu_on(data, stock):
    stock(options, "parse_args_and_arch")
    assert config("training", data, *translation_options(), "--bf16").common.tpu


def test_parse_known_returns_the_rest(data):
    parser = options.get_training_parser()
    words = [str(data), *translation_options(), "--bf16", "--nonsense"]
    args, rest = options.parse_args_and_arch(parser, words, parse_known=True)
    assert not args.tpu and rest == ["--nonsense"]


def test_training_works_in_bf16(data, tmp_path):
    state = run_training(data, tmp_path, *translation_options(), "--memory-efficient-bf16")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    for value in state["model"].values():  # stored in float32
        assert torch.equal(value, value.bfloat16().float())
