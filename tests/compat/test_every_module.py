"""What all modules of compat and hooks have in common."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from highrank_plugins import compat, hooks

NAMES = [
    f"{package.__name__}.{module.name}"
    for package in (compat, hooks)
    for module in pkgutil.iter_modules(package.__path__)
]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_every_docstring_has_all_parts(name):
    source = Path(ROOT, *name.split(".")).with_suffix(".py").read_text()
    story = ast.get_docstring(ast.parse(source))
    for part in ("What breaks:", "Why:", "What we do:", "Delete when:"):
        assert part in story


@pytest.mark.parametrize("name", NAMES)
def test_every_module_has_tests(name):
    _, package, module = name.split(".")
    assert (ROOT / "tests" / package / f"test_{module}.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_second_import_does_not_wrap_again(name):
    module = importlib.import_module(name)
    before = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    importlib.reload(module)
    after = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    assert before == after
    for layer in after:
        sources = [layer.highrank_patch]
        while hasattr(layer := layer.__wrapped__, "highrank_patch"):
            sources.append(layer.highrank_patch)
        assert len(sources) == len(set(sources))


def test_repairs_are_independent():
    """Keep each deletable alone, for when fairseq no longer needs it."""
    for module in pkgutil.iter_modules(compat.__path__):
        tree = ast.parse(Path(compat.__path__[0], f"{module.name}.py").read_text())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [n for n in names if "compat" in n or "hooks" in n], module.name
            assert not getattr(node, "level", 0), f"{module.name}: a relative import"
