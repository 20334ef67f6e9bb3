"""What all modules of compat and hooks have in common: their docstrings."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from highrank_plugins import compat, hooks

PACKAGES = (compat, hooks)
NAMES = [
    f"{package.__name__}.{module.name}"
    for package in PACKAGES
    for module in pkgutil.iter_modules(package.__path__)
]
ROOT = Path(__file__).parents[2]
PARTS = r"What\s+breaks:.*Why:.*What\s+we\s+do:.*Delete\s+when:"


def source(name: str) -> ast.Module:
    return ast.parse(Path(ROOT, *name.split(".")).with_suffix(".py").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_repair_says_why_it_is_there(name):
    """A repair of compat has a docstring; one of hooks a paragraph in that of its file."""
    story = ast.get_docstring(source(name))
    if name.startswith(compat.__name__):
        assert re.search(PARTS, story, re.DOTALL)
        return
    repairs = [text for text in story.split("\n\n") if "Why:" in text]
    assert repairs and all(re.search(PARTS, text, re.DOTALL) for text in repairs)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_import_does_not_wrap_again(name):
    if name.endswith(".trainer"):
        return  # a class: it wraps nothing
    module = importlib.import_module(name)
    before = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    importlib.reload(module)
    after = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    assert before == after


def test_repairs_are_independent():
    """Keep each deletable alone, for when fairseq no longer needs it."""
    for module in pkgutil.iter_modules(compat.__path__):
        for node in ast.walk(source(f"{compat.__name__}.{module.name}")):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [n for n in names if "compat" in n or "hooks" in n], module.name
            assert not getattr(node, "level", 0), f"{module.name}: a relative import"
