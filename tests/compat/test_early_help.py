"""Test compat/early_help.py."""

import argparse

import pytest

import highrank_plugins.compat.early_help  # noqa: F401  (importing it applies the repair)
from tests.compat.conftest import config


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
