"""Options of fairseq's commands: what is understood, suggested, and explained."""

import argparse

import pytest
from fairseq import options

from tests.compat.conftest import config, transformer


@pytest.mark.parametrize(
    ("flags", "tpu"),
    [("--bf16", False), ("--memory-efficient-bf16", False), ("--bf16 --tpu", True)],
)
def test_bf16_does_not_turn_tpu_on(flags, tpu):
    words = ["data", *transformer(), *flags.split(), "--nonsense"]
    parser = options.get_training_parser()
    args, rest = options.parse_args_and_arch(parser, words, parse_known=True)
    assert args.tpu is tpu and rest == ["--nonsense"]


WRONG = ["abc", "$rate", "${oc.env:HOME}", "1;", "0.1,a", "(" * 10_000, "__import__('os')", "{}x"]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: value[:9])
@pytest.mark.parametrize("option", ["--lr", "--update-freq"])
def test_a_value_that_is_not_a_number_is_reported(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        options.get_training_parser().parse_known_args(["data", option, value])
    assert ended.value.code == 2
    said = f"argument {option}: expected a number, or several separated by commas (0.1,0.2), got"
    assert said in capsys.readouterr().err
    args, _ = options.get_training_parser().parse_known_args(["data", "--lr", "1e-3,2"])
    assert args.lr == [1e-3, 2.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--encoder-layrs 2", "--encoder-layrs 2; did you mean '--encoder-layers'?"),
        ("--arch transformer_iwslt_de_enn",
         "'transformer_iwslt_de_enn'; did you mean 'transformer_iwslt_de_en'?"),
        ("--tokens-per-sample 9", "--tokens-per-sample 9; add --task language_modeling"),
        ("--optimizer adamm", "did you mean 'adam'?"),
        ("--criterion cross_entrpy", "did you mean 'cross_entropy'?"),
        ("--qqqq", "unrecognized arguments: --qqqq"),  # no name is similar
        ("--ddp-backend mine", "'pytorch_ddp', 'slowmo')"),
    ],
)  # fmt: skip
def test_a_mistyped_option_gets_a_suggestion_in_place_of_the_usage(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        config("training", "data", *transformer(), *words.split())
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.rstrip().endswith(said) and "usage:" not in message


@pytest.mark.parametrize(
    ("words", "lists"),
    [
        ("--arch transformer --help", True),  # without data, which is required
        ("--arch transformer -h", True),
        ("--help", False),
    ],
)
def test_help_lists_the_options_of_the_architecture(capsys, words, lists):
    with pytest.raises(SystemExit) as end:
        config("training", *words.split())
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert ("--encoder-attention-heads" in text) is lists and "--max-tokens" in text


def test_missing_arguments_are_still_reported_and_other_parsers_left_alone(capsys):
    with pytest.raises(SystemExit) as end:
        config("training", "--arch", "transformer")
    assert end.value.code == 2
    assert "data" in capsys.readouterr().err.splitlines()[-1]
    parser = argparse.ArgumentParser()
    parser.add_argument("needed")
    with pytest.raises(SystemExit) as end:
        parser.parse_known_args(["--help"])
    assert end.value.code == 0
    assert "needed" in capsys.readouterr().out
