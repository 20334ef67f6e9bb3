"""Options of fairseq's commands: what is understood, suggested, and explained."""

import argparse

import pytest
import torch
from fairseq import options
from fairseq.dataclass import utils

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


WRONG = ["abc", "$rate", "${oc.env:HOME}", "1;", "0.1,a", "(" * 10_000, "__import__('os')", "{}x"]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: value[:9])
@pytest.mark.parametrize("option", ["--lr", "--update-freq"])
def test_a_value_that_is_not_a_number_is_reported(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        options.get_training_parser().parse_known_args(["data", option, value])
    assert ended.value.code == 2
    assert (
        f"argument {option}: expected a number, or several separated by commas (0.1,0.2), got"
        in (capsys.readouterr().err)
    )


def test_stock_raises_an_error_that_argparse_does_not_report(stock):
    stock(utils, "eval_str_list")
    with pytest.raises(SyntaxError):
        options.get_training_parser().parse_known_args(["data", "--lr", "$rate"])


@pytest.mark.parametrize(("value", "numbers"), [("0.5", [0.5]), ("1e-3,2", [1e-3, 2.0])])
def test_numbers_are_read(value, numbers):
    args, _ = options.get_training_parser().parse_known_args(["data", "--lr", value])
    assert args.lr == numbers


def message_of(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as end:
        config("training", "data", *translation_options(), *argv)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_mistyped_option_gets_a_suggestion(capsys):
    message = message_of(capsys, "--encoder-layrs", "2")
    assert message.endswith("arguments: --encoder-layrs 2; did you mean '--encoder-layers'?")


def test_a_mistyped_architecture_gets_a_suggestion(capsys):
    message = message_of(capsys, "--arch", "transformer_iwslt_de_enn")
    assert message.endswith("'transformer_iwslt_de_enn'; did you mean 'transformer_iwslt_de_en'?")


@pytest.mark.parametrize(
    ("option", "typed", "meant"),
    [("--optimizer", "adamm", "adam"), ("--criterion", "cross_entrpy", "cross_entropy")],
)
def test_a_mistyped_choice_gets_a_suggestion(option, typed, meant, capsys):
    assert message_of(capsys, option, typed).endswith(f"did you mean '{meant}'?")


def test_the_usage_is_left_out(capsys):
    with pytest.raises(SystemExit):
        config("training", "data", *translation_options(), "--encoder-layrs", "2")
    assert "usage:" not in capsys.readouterr().err


def test_suggestions_need_a_similar_name_and_short_lists_of_choices_stay(capsys):
    assert "did you mean" not in message_of(capsys, "--qqqq")
    assert "choose from" in message_of(capsys, "--ddp-backend", "mine")


def test_stock_suggests_nothing(capsys, stock):
    stock(argparse.ArgumentParser, "error")
    assert "did you mean" not in message_of(capsys, "--encoder-layrs", "2")


def help_text(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as end:
        config("training", *argv)
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_the_options_of_the_architecture(capsys, flag):
    text = help_text(capsys, "--arch", "transformer", flag)  # without data, which is required
    assert "--encoder-attention-heads" in text
    assert "--max-tokens" in text


def test_help_works_without_an_architecture(capsys):
    assert "--max-tokens" in help_text(capsys, "--help")


def test_missing_arguments_are_still_reported(capsys):
    with pytest.raises(SystemExit) as end:
        config("training", "--arch", "transformer")
    assert end.value.code == 2
    assert "data" in capsys.readouterr().err.splitlines()[-1]


def test_other_parsers_are_left_alone(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("needed")
    with pytest.raises(SystemExit) as end:
        parser.parse_known_args(["--help"])
    assert end.value.code == 0
    assert "needed" in capsys.readouterr().out


def test_stock_help_lists_no_option_of_the_architecture(capsys, stock):
    stock(argparse.ArgumentParser, "parse_known_args")
    assert "--encoder-attention-heads" not in help_text(capsys, "--arch", "transformer", "--help")
