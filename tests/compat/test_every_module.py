"""What all modules of compat have in common."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from highrank_plugins import compat

NAMES = [m.name for m in pkgutil.iter_modules(compat.__path__) if not m.name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_tells_the_story(name):
    source = Path(compat.__path__[0], f"{name}.py").read_text()
    story = ast.get_docstring(ast.parse(source))
    for part in ("What breaks:", "Why:", "What we do:", "Delete when:"):
        assert part in story


@pytest.mark.parametrize("name", NAMES)
def test_has_tests(name):
    assert Path(__file__).with_name(f"test_{name}.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_second_import_does_not_stack(name):
    module = importlib.import_module(f"{compat.__name__}.{name}")
    before = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    importlib.reload(module)
    after = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    assert before == after
    for layer in after:
        sources = [layer.highrank_patch]
        while hasattr(layer := layer.__wrapped__, "highrank_patch"):
            sources.append(layer.highrank_patch)
        assert len(sources) == len(set(sources))
