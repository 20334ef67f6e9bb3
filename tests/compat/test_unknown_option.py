"""Test compat/unknown_option.py."""

import argparse

import pytest

import highrank_plugins.compat.unknown_option  # noqa: F401  (importing it applies the repair)
from tests.compat.conftest import config, translation_options


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
