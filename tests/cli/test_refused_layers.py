"""A layer of a user-dir that cannot be used is refused in one line as it is registered."""

import re

import pytest

from tests.cli.test_user_layers import CODE, changed
from tests.fairseq_cli import attempt

ARCSINH = "pointwise function 'arcsinh' of class Arcsinh:"
T = "temperature: float = 2.0"
COOLED = "head 'cooled' of class Cooled:"


# what is wrong → code, its replacement, and the message
BROKEN = {
    "an option of all layers": (
        T, f"loss: float = 1.0, {T}", "--head-loss is an option of all layers and of cooled"
    ),
    "an option of another structure": (
        T, f"components: str = 'many', {T}", "--head-components is an option of cooled and of mixt"
    ),
    **{
        f"the default {default}": ("c: float = 30.0", default, f"{ARCSINH} the argument c .* needs")
        for default in ("c: float", "c=None", "c=float('inf')", "c=[30.0]")
    },
    "text as constants": ("asinh(z / c).", '"""; constants = "c"; """', rf"{ARCSINH} .*\('c',\)"),
    "a missing argument of all layers": (
        " embed_dim=None, weight=None,", "", f"{COOLED} its constructor lacks embed_dim, weight, w"
    ),
    "a name of fairseq's": ('e("arcsinh")', 'e("lm")', r"layer 'lm': .*\(lstm_lm\); choose anothe"),
    "code that fails": ('e("arcsinh")', "e(arcs)", "NameError: name 'arcs' is not defined"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN.values(), ids=BROKEN)
def test_a_package_that_cannot_be_imported_is_refused_with_its_line(old, new, message, tmp_path):
    package = changed(tmp_path, (old, new))
    refused = attempt("highrank", "list", "heads", "--user-dir", package)
    where = rf"highrank: --user-dir {package}: {package}/__init__\.py:\d+: "
    assert refused.code == 2 and re.fullmatch(f"{where}{message}.*\n", refused.output)


@pytest.mark.parametrize("command", ["train", "generate", "eval-lm", "interactive", "validate"])
def test_fairseq_refuses_a_layer_in_one_line(command, tmp_path):
    package = changed(tmp_path, ("c: float = 30.0", "c: float"))
    done = attempt(command, "data", "--user-dir", package)
    line = rf"fairseq-{command}: error: {package}/__init__\.py:\d+: {ARCSINH} the argument c .*\n"
    assert done.code == 2 and re.fullmatch(line, done.output)


def test_code_of_a_layer_that_fails_keeps_its_traceback_and_may_be_for_fairseq_alone(tmp_path):
    done = attempt("train", "data", "--user-dir", changed(tmp_path, ('e("arcsinh")', "e(arcs)")))
    assert done.code == 1 and "Traceback" in done.output
    assert done.output.endswith("NameError: name 'arcs' is not defined\n")
    models = tmp_path / "alone" / "models"
    models.mkdir(parents=True)
    (models / "arcsinh.py").write_text(CODE)
    done = attempt("highrank", "list", "heads", "--user-dir", models.parent)
    assert done.code == 0 and "| `arcsinh` |" in done.output
