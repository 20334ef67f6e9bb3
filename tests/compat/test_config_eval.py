"""Test compat/config_eval.py."""

import importlib
import sys

import pytest
from fairseq import utils
from fairseq.models import fconv, transformer_lm

from highrank_plugins.common.user_error import UserError
from highrank_plugins.compat.config_eval import literal

LITERALS = {
    "(0.9, 0.98)": (0.9, 0.98),
    "1e-4": 1e-4,
    " [(512, 3)] * 20": [(512, 3)] * 20,
    "[(512, 9)] * 2 + [(2048, 1)] * 1": [(512, 9)] * 2 + [(2048, 1)],
    "[(1, 64), (2, 128)]": [(1, 64), (2, 128)],
    "(-1, +2)": (-1, 2),
    "8 * 1024 - 1": 8191,
    "True": True,
    "None": None,
    "{'beam': 4, 'lenpen': 0.6}": {"beam": 4, "lenpen": 0.6},
    "'word'": "word",
}
REFUSED = [
    "__import__('os').system('true')",
    "[].__class__",
    "open",
    "lambda: 1",
    "[x for x in (1, 2)]",
    "f'{1}'",
    "2 ** 99999999",
    "'a' * 10",
    "[0] * 10001",
    "[[0] * 10000] * 10000 * 10000",
    "[0] + (1,)",
    "[0] * True * 1.5",
    "-[1]",
    "{**{}}",
    "{[]: 1}",
    "1 +",
    "",
    "(" * 300 + ")" * 300,
    "-" * 9000 + "1",
    "1," * 6000,
    "1\0",
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_other_expressions_are_refused_and_quoted(text):
    with pytest.raises(UserError, match=r"literal|characters") as error:
        literal(text)
    assert repr(text)[1:20] in str(error.value)


def test_literals_have_the_values_of_eval_and_fairseqs_option_helpers_work():
    for text, value in LITERALS.items():
        assert literal(text) == value == eval(text)
    for value in (True, 0, None, (0.9, 0.98), [1]):
        assert literal(value) is value
    assert utils.eval_bool(True) is True  # stock: TypeError inside, so the default, False
    assert utils.eval_bool("0", default=True) is False
    assert utils.eval_str_list("1, 2", type=int) == [1, 2]
    assert utils.eval_str_list("3", type=int) == [3]


@pytest.mark.parametrize("module", [utils, transformer_lm, fconv])
def test_no_module_runs_an_expression(module, monkeypatch, tmp_path):
    attack = f"open({str(tmp_path / 'executed')!r}, 'w')"
    with pytest.raises(UserError, match="not a plain literal"):
        utils.eval_str_list(attack) if module is utils else module.eval(attack)
    assert not list(tmp_path.iterdir())
    monkeypatch.delattr(module, "eval")  # without the workaround the built-in one is found
    assert "eval" not in vars(module)


def test_modules_imported_later_are_safe_too_and_other_packages_keep_their_eval(monkeypatch):
    name = "fairseq.data.codedataset"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module(name).eval is literal
    assert "eval" not in vars(importlib.import_module("torch.nn.functional"))
