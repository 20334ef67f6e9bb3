"""Test compat/number_list.py."""

import pytest
from fairseq import options
from fairseq.dataclass import utils

import highrank_plugins.compat.number_list  # noqa: F401  (importing it applies the repair)

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
