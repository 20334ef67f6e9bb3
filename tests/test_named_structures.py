"""Heads tell what they are: whoever asks for a class or a name leaves out the layers of others."""

import ast
from collections.abc import Iterator

import pytest

from highrank_plugins.heads.base import HEADS
from tests.test_architecture import MODULES, PACKAGE, part_of

CLASSES = {HEADS.find(name).__name__ for name in HEADS.names()}
NAMES = CLASSES | {*HEADS.names()}
# where a structure's name decides something outside of heads/ and losses/, and why
ALLOWED = {
    "reports/plots.py": "the same colour for a published layer in every figure; others are grey",
    "reports/fsmt_folder.py": "FSMT of transformers computes a plain softmax alone",
    "models/awd_lstm_lm.py": "the papers' sizes of LSTMs, which differ by structure",
}


def structures_in(tree: ast.AST) -> Iterator[str]:
    """Yield concrete classes of heads, and what is compared with the name of a structure."""
    for node in ast.walk(tree):
        compared: list[ast.AST | None] = []
        if isinstance(node, ast.Name | ast.Attribute | ast.alias):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", "")))
            if name in CLASSES:
                yield f"line {node.lineno}: {name}"
        elif isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            compared = [*node.keys]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        for part in filter(None, compared):
            for constant in ast.walk(part):
                if isinstance(constant, ast.Constant) and constant.value in NAMES:
                    yield f"line {constant.lineno}: {constant.value!r}"


@pytest.mark.parametrize(
    "module",
    [path for path in MODULES if part_of(path) not in ("heads", "losses")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_other_module_names_a_structure(module):
    found = list(structures_in(ast.parse(module.read_text())))
    assert bool(found) == (str(module.relative_to(PACKAGE)) in ALLOWED), found


def test_a_named_structure_is_found():
    for code in (
        "from highrank_plugins.heads import Mixtape",
        "isinstance(head, heads.MixtureOfSoftmaxes)",
        "type(head).__name__ == 'Softmax'",
        "if name in ('mos', 'moc'): pass",
        "{'mixtape': 1}[name]",
        "match name:\n    case 'moc':\n        pass",
    ):
        assert list(structures_in(ast.parse(code))), code
